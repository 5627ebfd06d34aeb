from typing import Any

from benchmarks import quote_soak


def samples(*of_services: list[tuple[int, float, float]]) -> list[dict[str, Any]]:
    return [
        {"ended": ended, "service_age_s": age_s, "rss_mib": rss_mib}
        for service in of_services
        for ended, age_s, rss_mib in service
    ]


def test_memory_is_that_of_the_service_that_lived_to_the_end() -> None:
    killed = [(100, 50.0, 900.0), (200, 80.0, 950.0)]
    living = [(300, 10.0, 150.0), (400, 60.0, 152.0), (500, 110.0, 154.0)]
    assert quote_soak.memory(samples(killed, living)) == ("150, 154 MiB", "+20.0 MiB")


def test_two_samples_make_no_trend() -> None:
    assert quote_soak.memory(samples([(1, 1.0, 1.0), (2, 2.0, 2.0)])) == ("unknown", "unknown")


def test_what_is_stuck_and_what_failed_are_shown() -> None:
    row = {
        "database": "sqlite",
        "experiments": 1_200,
        "minutes": 12.3,
        "faults": {"jobs": 9, "services": 4},
        "states": {"succeeded": 1_190, "failed (job_failed)": 2, "cancelled (cancelled_by_user)": 8},
        "samples": [],
        "problem": "exp-1 is leased\nand more",
    }
    about = {"cpus": 2, "python": "3.11.7", "date": "2026-11-28T00:00:00", "command": "python -m x"}
    shown = quote_soak.soak({"rows": [row], **about})
    line = "| sqlite | 1,200 | 4, 0, 9 | 2 failed (job_failed) | exp-1 is leased | unknown | unknown |"
    assert line in shown.splitlines()
    assert "12 minutes" in shown
