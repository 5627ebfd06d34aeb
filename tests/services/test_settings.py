"""Settings: defaults that hang together, every field from the environment, mistakes named."""

import os
from pathlib import Path

import pytest

from phantom_core.described import description_of
from phantom_core.signs import SIGN_S
from services.settings import Settings, SettingsError, variables


def test_defaults_follow_the_data_folder(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.database_url == f"sqlite:///{tmp_path}/ghostwatt.sqlite3"
    assert settings.data_roots == (tmp_path / "data",)
    assert settings.service_url == "http://127.0.0.1:8411"
    assert settings.ray_address is None


def test_a_service_on_all_addresses_is_called_back_on_loopback() -> None:
    assert Settings(host="0.0.0.0", port=9000).service_url == "http://127.0.0.1:9000"
    assert Settings(host="::1", port=9000).service_url == "http://[::1]:9000"


def test_every_setting_is_documented_and_can_come_from_the_environment() -> None:
    for name in Settings.model_fields:
        assert description_of(Settings, name), name
        assert f"GHOSTWATT_{name.upper()}" in variables()


def test_values_are_read_and_converted(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            "GHOSTWATT_DATA_DIR": str(tmp_path),
            "GHOSTWATT_PORT": "9001",
            "GHOSTWATT_DATA_ROOTS": f"/a{os.pathsep}/b",
            "GHOSTWATT_LEASE_TTL_S": "12.5",
            "GHOSTWATT_DATABASE_URL": "postgresql://u:secret@h/d",
            "RAY_ADDRESS": "http://head:8265",
            "HOME": "/root",
        }
    )
    assert settings.port == 9001
    assert settings.data_roots == (Path("/a"), Path("/b"))
    assert settings.lease_ttl_s == 12.5
    assert settings.database_url == "postgresql+psycopg://u:secret@h/d"
    assert settings.ray_address == "http://head:8265"


def test_the_shortest_silence_is_two_signs_of_life() -> None:
    assert Settings(silence_deadline_s=2 * SIGN_S).silence_deadline_s == 2 * SIGN_S


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert Settings.from_environment({"GHOSTWATT_PORT": ""}).port == 8411


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GHOSTWATT_PORT", "eighty", "GHOSTWATT_PORT = 'eighty'"),
        ("GHOSTWATT_PORT", "70000", "GHOSTWATT_PORT"),
        ("GHOSTWATT_DATABASE_URL", "mysql://h/d", "neither sqlite:/// nor postgresql"),
        ("GHOSTWATT_LEASE_TTL_S", "nan", "GHOSTWATT_LEASE_TTL_S"),
        ("GHOSTWATT_LEASE_TTL_S", "1", "shorter than three poll intervals"),
        ("GHOSTWATT_SILENCE_DEADLINE_S", "39.9", "silence_deadline_s = 39.9 is less than 40"),
        ("GHOSTWATT_SILENCE_DEADLINE_S", "1", "raise it to 40 or more"),
        ("GHOSTWATT_DATA_ROOT", "/a", "is GHOSTWATT_DATA_ROOTS meant?"),
    ],
)
def test_a_mistake_is_refused_by_name(variable: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=None) as caught:
        Settings.from_environment({variable: value})
    assert said in str(caught.value)


def test_a_password_is_neither_shown_nor_repeated_in_errors() -> None:
    shown = repr(Settings(database_url="postgresql://u:secret@h/d"))
    assert "secret" not in shown
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({"GHOSTWATT_DATABASE_URL": "oracle://u:secret@h/d"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://host:84x1", "host:8411", "ftp://host", "http://", "http://user:password@host"]
)
def test_an_address_that_jobs_can_t_ask_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="service_url is no address") as refused:
        Settings.from_environment({"GHOSTWATT_SERVICE_URL": url})
    assert "user:password" not in str(refused.value)
