# Install a distribution in a fresh environment outside of the repository, use it as a user would, delete it.
#   sh tests/try_dist.sh PYTHON FILE
set -eu
constraints=$(cd "$(dirname "$0")/.." && pwd)/constraints.txt
file=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$1" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check -c "$constraints" "$file"
export SUPEROPT_CACHE_DIR="$folder/cache"
env/bin/superopt --version
env/bin/superopt doctor
env/bin/superopt list
env/bin/superopt search rmsnorm-linear --show 1
env/bin/superopt optimize gated-mlp --size M=8 K=256 N=256 --dtype f32 --seconds 2 -o result.json || test $? -eq 1
env/bin/superopt report result.json
env/bin/superopt export result.json -o kernels.py
env/bin/python kernels.py
env/bin/python - <<'PROGRAM'
import torch

import superopt

assert "site-packages" in superopt.__file__, superopt.__file__
model = torch.nn.Sequential(torch.nn.RMSNorm(64), torch.nn.Linear(64, 64), torch.nn.SiLU())
compiled = torch.compile(model, backend="superopt", options={"budget_s": 2})
x = torch.randn(4, 64)
assert torch.allclose(compiled(x), model(x), atol=1e-5)
print("torch.compile(backend='superopt'): as eager")
PROGRAM
