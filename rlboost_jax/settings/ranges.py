"""Values that cannot be, whatever the other settings are."""

import functools
import math
from collections.abc import Iterator
from typing import Any

from rlboost_jax.platform.mistakes import suggestion
from rlboost_jax.platform.outside_code import OWN, PATH, entry_points_of
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import Setting, settings_of


def out_of_range(config: Any, section: str = "") -> Iterator[str]:
    """Yield a line per setting that is out of range: its value, and what to choose.

    Args:
        config: a RunConfig, or what has the section.
        section: such as "model."; "" for all.
    """
    for setting in settings_of(RunConfig):
        if setting.name.startswith(section):
            value = functools.reduce(getattr, setting.name.split("."), config)
            objection = objection_to(setting, value)
            if objection:
                yield f"{setting.name} {objection}"


def objection_to(setting: Setting, value: Any) -> str:
    """Say why a setting cannot have a value of its type; "" if it can."""
    if setting.choices:
        if value in setting.choices or (setting.outside and PATH.fullmatch(value)):
            return ""
        if setting.entry_points and value in entry_points_of(setting.entry_points):
            return ""
        yours = f"; yours is {OWN!r}" if setting.outside else ""
        return f"{value!r} does not exist; {suggestion(value, setting.choices)}{yours}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    least, above, most = setting.at_least, setting.above, setting.at_most
    if least is not None and not least <= value < math.inf:
        return f"is {value}; choose {least} or more"
    if above is not None and not above < value < math.inf:
        return f"is {value}; choose more than {above}"
    if most is not None and not value <= most:
        return f"is {value}; choose {most} or less"
    return "" if math.isfinite(value) else f"is {value}; choose a number"
