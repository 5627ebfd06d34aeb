from typing import Any

from benchmarks import quote_soak


def samples(*of_services: list[tuple[int, float, float]]) -> list[dict[str, Any]]:
    return [
        {"ended": ended, "pid": pid, "service_age_s": age_s, "rss_mib": rss_mib}
        for pid, service in enumerate(of_services)
        for ended, age_s, rss_mib in service
    ]


def test_memory_is_that_of_the_service_that_lived_to_the_end() -> None:
    killed = [(100, 50.0, 900.0), (200, 80.0, 950.0)]
    living = [(300, 10.0, 150.0), (400, 60.0, 152.0), (500, 110.0, 154.0)]
    assert quote_soak.memory(samples(killed, living)) == ("150, 154 MiB", "+20.0 MiB")


def test_services_whose_samples_follow_one_another_in_age_are_told_apart() -> None:
    killed = [(100, 50.0, 900.0), (200, 80.0, 950.0)]
    living = [(300, 90.0, 150.0), (400, 160.0, 152.0), (500, 210.0, 154.0)]
    assert quote_soak.memory(samples(killed, living)) == ("150, 154 MiB", "+20.0 MiB")


def test_samples_that_do_not_say_whose_they_are_make_no_trend() -> None:
    nameless = [{"ended": ended, "rss_mib": 150.0} for ended in (1, 2, 3)]
    assert quote_soak.memory(nameless) == ("unknown", "unknown")


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
    shown = quote_soak.soak({"rows": [row]}, "2 cores, Python 3.11.7, 2026-11-28, `python -m x`")
    line = "| sqlite | 1,200 | 4, 0, 9 | 2 failed (job_failed) | exp-1 is leased | unknown | unknown |"
    assert line in shown.splitlines()
    assert "12 minutes" in shown
