"""Environment variables are typed, and a mistake in one is said."""

from pathlib import Path

import pytest

from l2tune import settings


@pytest.fixture
def read(monkeypatch):
    def read(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(settings, "_current", None)
        return settings.current()

    return read


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("L2TUNE_CACHE_DIR", "/x/y", "cache_dir", Path("/x/y")),
        ("L2TUNE_DISABLE", "1", "disable", True),
        ("L2TUNE_DISABLE", "Off", "disable", False),
        ("L2TUNE_DISABLE", "", "disable", False),
        ("L2TUNE_NATIVE", "auto", "native", "auto"),
        ("L2TUNE_POLICY", "nearest", "policy", "nearest"),
        ("L2TUNE_COMPILE_TIMEOUT_S", "2.5", "compile_timeout_s", 2.5),
        ("L2TUNE_MAX_EXAMPLES", "7", "max_examples", 7),
    ],
)
def test_a_variable_sets_its_field_with_its_type(read, name, text, field, value):
    assert getattr(read(**{name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("L2TUNE_DISABLE", "maybe", "bool"),
        ("L2TUNE_MAX_EXAMPLES", "many", "int"),
        ("L2TUNE_COMPILE_TIMEOUT_S", "1 min", "float"),
    ],
)
def test_a_value_of_another_type_is_refused_and_named(read, name, text, kind):
    with pytest.raises(ValueError, match=f"{name}: found {text!r}, needed a {kind}"):
        read(**{name: text})


def test_a_value_that_is_none_of_the_choices_is_refused_with_them(read):
    with pytest.raises(ValueError, match="L2TUNE_NATIVE: found 'on', needed auto or off"):
        read(L2TUNE_NATIVE="on")


def test_the_environment_is_read_once(read, monkeypatch):
    before = read(L2TUNE_MAX_EXAMPLES="7")
    monkeypatch.setenv("L2TUNE_MAX_EXAMPLES", "8")
    assert settings.current() is before


def test_an_override_ends_with_its_block_even_after_an_exception():
    before = settings.current()
    block = settings.override(max_examples=3)
    block.__enter__()
    assert settings.current().max_examples == 3
    block.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert settings.current() is before


def test_an_unknown_setting_cannot_be_overridden():
    with pytest.raises(TypeError):
        settings.override(cache_directory="x").__enter__()
