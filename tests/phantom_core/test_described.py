from pydantic import BaseModel, ConfigDict, Field

from phantom_core.described import describe, docstrings_of


class Base(BaseModel):
    model_config = ConfigDict(json_schema_extra=describe)

    kept: int
    """Of the base."""


class Model(Base):
    """What it is."""

    plain: int
    """Told
    in two lines."""
    nested: Base | None = None
    """With a reference."""
    named: int = Field(alias="called")
    """Under another name."""
    said: int = Field(description="Said already.")
    """Not taken."""
    silent: int = 0


def test_docstrings_become_descriptions_when_a_schema_is_asked_for() -> None:
    schema = Model.model_json_schema()
    told = {name: part.get("description") for name, part in schema["properties"].items()}
    assert told == {
        "kept": "Of the base.",
        "plain": "Told\nin two lines.",
        "nested": "With a reference.",
        "called": "Under another name.",
        "said": "Said already.",
        "silent": None,
    }
    assert schema["description"] == "What it is."
    assert schema["$defs"]["Base"]["properties"]["kept"]["description"] == "Of the base."


def test_a_class_without_source_has_no_docstrings() -> None:
    assert docstrings_of(type("Made", (Base,), {"__module__": "nowhere"})) == {}
