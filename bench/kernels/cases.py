"""A case: a named workload at some sizes, which is made into kernels and raced against PyTorch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.command import check_names, listed
from superopt.errors import InputError
from superopt.workloads import WORKLOADS

if TYPE_CHECKING:
    from argparse import Namespace

    from torch import Tensor

__all__ = ["CACHES", "PREFILLS", "Case", "chosen"]

CACHES = ("gqa-decode", "mla", "qknorm-attention", "mqa-decode", "mha-decode")
PREFILLS = ("gqa", "mha", "mqa")


@dataclass(frozen=True, slots=True)
class Case:
    """A workload at some sizes."""

    workload: str
    suite: str  # the part of all cases that it belongs to, as in decode
    case: str
    sizes: Mapping[str, int] = field(hash=False)
    dtype: str | None = None  # None: the dtype of the whole run

    @property
    def name(self) -> str:
        """Its name in tables and files."""
        return "/".join(part for part in (self.workload, self.case, self.dtype) if part)

    @property
    def function(self) -> Callable[..., Any]:
        """The function that it computes."""
        return WORKLOADS[self.workload].function

    def inputs(self, dtype: str | None = None, device: str = "meta") -> "tuple[Tensor, ...]":
        """Return example inputs."""
        kind = dtype or self.dtype or "f16"
        return WORKLOADS[self.workload].inputs(dtype=kind, device=device, **self.sizes)

    def known(self) -> dict[str, Any]:
        """Return the fields of a record that describe the case."""
        about = {"case": self.name, "suite": self.suite, "workload": self.workload}
        return {**about, **({"dtype": self.dtype} if self.dtype else {}), "sizes": dict(self.sizes)}


def chosen(options: "Namespace", cases: Iterable[Case]) -> list[Case]:
    """Return the cases that the options `--workloads`, `--case` and `--dtype` leave, or raise InputError."""
    workloads, names, dtypes = (listed(one) for one in (options.workloads, options.case, options.dtype))
    check_names("--workloads", workloads, list(WORKLOADS))
    found = [
        one
        for one in cases
        if (not workloads or one.workload in workloads)
        and (not names or one.case in names or one.name in names)
        and (not dtypes or one.dtype in (None, *dtypes))
    ]
    if not found:
        raise InputError("no case is of these names; --list shows all")
    return found
