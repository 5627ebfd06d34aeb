from phantom_core.flags import FLAGS, Flag, blocking


def test_every_flag_has_a_meaning() -> None:
    assert set(FLAGS) == set(Flag)
    assert all(meaning.meaning.endswith(".") for meaning in FLAGS.values())


def test_blocking_keeps_only_flags_that_forbid_a_verdict_and_ignores_unknown_names() -> None:
    given = ["throttled", "counter_reset", "made_by_a_newer_job", "estimated", "counter_reset"]
    assert blocking(given) == (Flag.COUNTER_RESET,)


def test_what_the_design_says_about_weights_holds() -> None:
    block = {"short_window_refused", "counter_reset", "board_shared", "hardware_differs", "data_differs"}
    said_beside = {
        "short_window",
        "methods_disagree",
        "throttled",
        "sampler_gap",
        "not_idle_baseline",
        "estimated",
        "loss_differs",
    }
    assert {str(flag) for flag in blocking(block | said_beside)} == block
