"""The configurations of a C++ kernel: a default one for some sizes, and others worth a try."""

from superopt.codegen.cpp.config.choices import configs
from superopt.codegen.cpp.config.config import FEW, GROUPED, CppConfig
from superopt.codegen.cpp.config.default import default_config
from superopt.codegen.cpp.config.kernel import is_much_more_work

__all__ = ["FEW", "GROUPED", "CppConfig", "configs", "default_config", "is_much_more_work"]
