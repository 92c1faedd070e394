from __future__ import annotations

from gateway.config.origin import Origin, Reference, nearest, show

ORIGIN = Origin(
    file="f.yaml",
    lines={(): 1, ("models",): 2, ("models", 0): 3, ("models", 0, "name"): 4},
    references={("k",): Reference("${KEY}", "s3cr'et")},
)


def test_an_error_names_file_line_and_key() -> None:
    error = ORIGIN.error(("models", 0, "name"), "is bad")
    assert error.message == "f.yaml:4: models[0].name: is bad"
    assert error.param == "models[0].name"


def test_a_key_without_a_line_has_that_of_what_it_stands_under() -> None:
    assert ORIGIN.error(("models", 0, "endpoints", 2, "url"), "x").message == "f.yaml:3: models[0].endpoints[2].url: x"
    assert ORIGIN.error((), "x").message == "f.yaml:1: x"


def test_the_line_of_another_key_may_be_meant() -> None:
    assert ORIGIN.error(("models", 0), "x", at=("models", 0, "name")).message == "f.yaml:4: models[0]: x"


def test_without_a_file() -> None:
    assert Origin().error(("models",), "x").message == "models: x"


def test_foreign_text_is_scrubbed_of_the_environments_values() -> None:
    assert ORIGIN.scrub("bad s3cr'et") == "bad ${KEY}"
    escaped = Origin(references={("k",): Reference("${KEY}", "a\nb\\c")})
    assert escaped.scrub(f"bad {'a' + chr(10) + 'b' + chr(92) + 'c'!r}") == "bad '${KEY}'"
    assert "s3cr" not in repr(ORIGIN)


def test_top_level_keys() -> None:
    assert ORIGIN.given == {"models"}


def test_show() -> None:
    assert show(("a", 0, "b", "c", 1)) == "a[0].b.c[1]"
    assert show(()) == ""


def test_nearest() -> None:
    assert nearest("modles", ["models", "fleet"]) == "; did you mean 'models'? Allowed: fleet, models"
    assert nearest("zzz", ["models"]) == ". Allowed: models"
    assert nearest("zzz", []) == "; there are none"
