"""What every part of a spec is made of: names, numbers that are no booleans, the models' manners."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from phantom_core.described import describe

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._=-]{0,79}$")]
TagKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
TagValue = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Text = Annotated[str, StringConstraints(max_length=10_000, pattern=r"^[^\x00]*$")]
Column = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


def no_boolean(value: object) -> object:
    """Refuses true and false where a number is wanted.

    Python counts True as 1, so `width: true` would be a network of one neuron.

    Raises:
        ValueError: The value is one of them.
    """
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number; give one")
    return value


Whole = Annotated[int, BeforeValidator(no_boolean)]
Number = Annotated[float, BeforeValidator(no_boolean)]
Seed = Annotated[Whole, Field(ge=0, lt=2**31)]


class SpecModel(BaseModel):
    """Frozen; unknown fields, NaN and infinities refused; a field's docstring is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=describe)
