"""The configurations of a C++ kernel: a default one for some sizes, and others worth a try."""

from superopt.codegen.cpp.config.choices import configs
from superopt.codegen.cpp.config.config import FEW, GROUPED, CppConfig
from superopt.codegen.cpp.config.default import default_config

__all__ = ["FEW", "GROUPED", "CppConfig", "configs", "default_config"]
