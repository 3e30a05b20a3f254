"""Products with masks: what a mask hides adds nothing, infinities included."""

import pytest
from masks import CHOSEN
from quick import few


@pytest.mark.parametrize("configs", few(["default", "random"], "random"))
@pytest.mark.parametrize("text", CHOSEN.values(), ids=CHOSEN.keys())
def test_masks_hide_infinities(agrees, text, configs):
    agrees("text", text=text, domain=[90, 200], configs=configs)
