"""First tables"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from migrations.types import INSTANT, JSON, KEY

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("sample_rate_hz", sa.Double(), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("plan", JSON, nullable=False),
        sa.Column("baseline", sa.String(length=80), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("submitted_by", sa.String(length=64), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("cancel_requested_at", INSTANT, nullable=True),
        sa.Column("delete_requested_at", INSTANT, nullable=True),
        sa.Column("lease_owner", sa.String(length=200), nullable=True),
        sa.Column("lease_token", sa.String(length=64), nullable=True),
        sa.Column("lease_expires_at", INSTANT, nullable=True),
        sa.Column("eligible_at", INSTANT, nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("ray_job_id", sa.String(length=200), nullable=True),
        sa.Column("ray_dashboard_url", sa.Text(), nullable=True),
        sa.Column("environment", JSON, nullable=True),
        sa.Column("reported_outcome", sa.String(length=16), nullable=True),
        sa.Column("reported_reason", sa.String(length=64), nullable=True),
        sa.Column("reported_message", sa.Text(), nullable=True),
        sa.Column("submitted_at", INSTANT, nullable=False),
        sa.Column("leased_at", INSTANT, nullable=True),
        sa.Column("starting_at", INSTANT, nullable=True),
        sa.Column("running_at", INSTANT, nullable=True),
        sa.Column("first_run_at", INSTANT, nullable=True),
        sa.Column("finished_at", INSTANT, nullable=True),
        sa.Column("last_event_at", INSTANT, nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("progress_at", INSTANT, nullable=True),
        sa.Column("comparison", JSON, nullable=True),
        sa.Column("compared_at", INSTANT, nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'leased', 'starting', 'running', "
            "'succeeded', 'failed', 'cancelled', 'lost')",
            name=op.f("ck_experiments_state_known"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
    )
    op.create_index("ix_experiments_name", "experiments", ["name"], unique=False)
    op.create_index("ix_experiments_queue", "experiments", ["state", "priority", "id"], unique=False)

    op.create_table(
        "heartbeats",
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("state", JSON, server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_heartbeats")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("caller", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("payload_sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("caller", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_table(
        "switches",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", JSON, nullable=False),
        sa.Column("set_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_switches")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("scopes", JSON, nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_api_keys_experiment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index(op.f("ix_api_keys_experiment_id"), "api_keys", ["experiment_id"], unique=False)

    op.create_table(
        "arms",
        sa.Column("key", KEY, nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("strategy", sa.String(length=32), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("ghosts", sa.Integer(), nullable=True),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("settings", JSON, nullable=False),
        sa.Column("control_of", JSON, nullable=False),
        sa.Column("cost", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_arms_experiment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_arms")),
        sa.UniqueConstraint("experiment_id", "name", name=op.f("uq_arms_experiment_id_name")),
    )
    op.create_index("ix_arms_shape", "arms", ["strategy", "width", "world_size"], unique=False)

    op.create_table(
        "devices",
        sa.Column("key", KEY, nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("uuid", sa.String(length=255), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=True),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("method", sa.String(length=32), nullable=True),
        sa.Column("scope", sa.String(length=32), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("driver", sa.String(length=64), nullable=True),
        sa.Column("power_limit_mw", sa.Double(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_devices_experiment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_devices")),
        sa.UniqueConstraint("experiment_id", "host", "uuid", name=op.f("uq_devices_experiment_id_host_uuid")),
    )
    op.create_index(op.f("ix_devices_name"), "devices", ["name"], unique=False)

    op.create_table(
        "events",
        sa.Column("key", KEY, nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("subject_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("received_at", INSTANT, nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("payload", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_events_experiment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_events")),
        sa.UniqueConstraint(
            "subject_id", "attempt", "source", "seq", name=op.f("uq_events_subject_id_attempt_source_seq")
        ),
    )
    op.create_index("ix_events_log", "events", ["experiment_id", "key"], unique=False)

    op.create_table(
        "experiment_attempts",
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("begun_at", INSTANT, nullable=False),
        sa.Column("ray_job_id", sa.String(length=200), nullable=True),
        sa.Column("environment", JSON, nullable=True),
        sa.Column("ended_at", INSTANT, nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_experiment_attempts_experiment_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "attempt", name=op.f("pk_experiment_attempts")),
    )
    op.create_table(
        "experiment_tags",
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("value", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_experiment_tags_experiment_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "name", name=op.f("pk_experiment_tags")),
    )
    op.create_index("ix_experiment_tags_found", "experiment_tags", ["name", "value"], unique=False)

    op.create_table(
        "board_states",
        sa.Column("key", KEY, nullable=False),
        sa.Column("device_key", KEY, nullable=False),
        sa.Column("experiment_attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("started_monotonic_s", sa.Double(), nullable=False),
        sa.Column("ended_monotonic_s", sa.Double(), nullable=False),
        sa.Column("states", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["device_key"], ["devices.key"], name=op.f("fk_board_states_device_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_board_states")),
    )
    op.create_index(
        "ix_board_states_series",
        "board_states",
        ["device_key", "experiment_attempt", "started_monotonic_s"],
        unique=False,
    )

    op.create_table(
        "comparisons",
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("arm_key", KEY, nullable=False),
        sa.Column("metric", sa.String(length=64), nullable=False),
        sa.Column("is_primary", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.String(length=32), nullable=False),
        sa.Column("ratio", sa.Double(), nullable=True),
        sa.Column("ratio_low", sa.Double(), nullable=True),
        sa.Column("ratio_high", sa.Double(), nullable=True),
        sa.Column("pairs", sa.Integer(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("loss_differs", sa.Boolean(), nullable=False),
        sa.Column("flags", JSON, nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["arm_key"], ["arms.key"], name=op.f("fk_comparisons_arm_key"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_comparisons_experiment_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "arm_key", "metric", name=op.f("pk_comparisons")),
    )
    op.create_index(op.f("ix_comparisons_arm_key"), "comparisons", ["arm_key"], unique=False)
    op.create_index("ix_comparisons_found", "comparisons", ["metric", "ratio"], unique=False)

    op.create_table(
        "power_samples",
        sa.Column("key", KEY, nullable=False),
        sa.Column("device_key", KEY, nullable=False),
        sa.Column("experiment_attempt", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("ended_at", INSTANT, nullable=False),
        sa.Column("started_monotonic_s", sa.Double(), nullable=False),
        sa.Column("ended_monotonic_s", sa.Double(), nullable=False),
        sa.Column("sample_count", sa.Integer(), nullable=False),
        sa.Column("missing_count", sa.Integer(), nullable=False),
        sa.Column("least_mw", sa.Double(), nullable=True),
        sa.Column("mean_mw", sa.Double(), nullable=True),
        sa.Column("greatest_mw", sa.Double(), nullable=True),
        sa.Column("readings", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["device_key"], ["devices.key"], name=op.f("fk_power_samples_device_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_power_samples")),
    )
    op.create_index(
        "ix_power_samples_series",
        "power_samples",
        ["device_key", "experiment_attempt", "started_monotonic_s"],
        unique=False,
    )

    op.create_table(
        "runs",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("arm_key", KEY, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=True),
        sa.Column("finished_at", INSTANT, nullable=True),
        sa.Column("steps", sa.BigInteger(), nullable=True),
        sa.Column("samples", sa.BigInteger(), nullable=True),
        sa.Column("training_s", sa.Double(), nullable=True),
        sa.Column("energy_training_mj", sa.Double(), nullable=True),
        sa.Column("energy_training_uncertainty_mj", sa.Double(), nullable=True),
        sa.Column("energy_setup_mj", sa.Double(), nullable=True),
        sa.Column("energy_evaluation_mj", sa.Double(), nullable=True),
        sa.Column("energy_idle_boards_mj", sa.Double(), nullable=True),
        sa.Column("steady_s", sa.Double(), nullable=True),
        sa.Column("steady_steps", sa.BigInteger(), nullable=True),
        sa.Column("energy_steady_mj", sa.Double(), nullable=True),
        sa.Column("per_step_phase", sa.String(length=16), nullable=True),
        sa.Column("energy_per_step_mj", sa.Double(), nullable=True),
        sa.Column("energy_per_step_uncertainty_mj", sa.Double(), nullable=True),
        sa.Column("energy_per_sample_mj", sa.Double(), nullable=True),
        sa.Column("seconds_per_step", sa.Double(), nullable=True),
        sa.Column("target_step", sa.BigInteger(), nullable=True),
        sa.Column("energy_to_target_mj", sa.Double(), nullable=True),
        sa.Column("seconds_to_target", sa.Double(), nullable=True),
        sa.Column("final_train_loss", sa.Double(), nullable=True),
        sa.Column("final_evaluation_loss", sa.Double(), nullable=True),
        sa.Column("non_finite", JSON, nullable=True),
        sa.Column("idle_power_mw", sa.Double(), nullable=True),
        sa.Column("energy_net_mj", sa.Double(), nullable=True),
        sa.Column("energy_integral_mj", sa.Double(), nullable=True),
        sa.Column("sample_count", sa.Integer(), nullable=True),
        sa.Column("largest_gap_s", sa.Double(), nullable=True),
        sa.Column("method", sa.String(length=32), nullable=True),
        sa.Column("scope", sa.String(length=32), nullable=True),
        sa.Column("energy_reason", sa.Text(), nullable=True),
        sa.Column("flags", JSON, nullable=True),
        sa.Column("device_keys", JSON, nullable=True),
        sa.Column("step_mode", sa.String(length=16), nullable=True),
        sa.Column("step_mode_reason", sa.Text(), nullable=True),
        sa.Column("parameters", sa.BigInteger(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("flops_per_step", sa.Double(), nullable=True),
        sa.Column("bytes_sent_per_step", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'diverged', 'failed', 'cancelled')",
            name=op.f("ck_runs_state_known"),
        ),
        sa.ForeignKeyConstraint(["arm_key"], ["arms.key"], name=op.f("fk_runs_arm_key"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_runs_experiment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_runs")),
        sa.UniqueConstraint(
            "experiment_id", "round", "position", name=op.f("uq_runs_experiment_id_round_position")
        ),
        sa.UniqueConstraint("id", name=op.f("uq_runs_id")),
    )
    op.create_index(op.f("ix_runs_arm_key"), "runs", ["arm_key"], unique=False)
    op.create_index("ix_runs_state", "runs", ["experiment_id", "state"], unique=False)

    op.create_table(
        "attempts",
        sa.Column("run_key", KEY, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("experiment_attempt", sa.Integer(), nullable=False),
        sa.Column("assigned_at", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT, nullable=True),
        sa.Column("finished_at", INSTANT, nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("energy_mj", sa.Double(), nullable=True),
        sa.Column("finish", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_attempts_run_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "attempt", name=op.f("pk_attempts")),
    )
    op.create_table(
        "metrics",
        sa.Column("run_key", KEY, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("non_finite", sa.String(length=4), nullable=True),
        sa.Column("energy_mj", sa.Double(), nullable=True),
        sa.Column("training_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_metrics_run_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "name", "attempt", "step", "seq", name=op.f("pk_metrics")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "windows",
        sa.Column("key", KEY, nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("run_key", KEY, nullable=True),
        sa.Column("device_key", KEY, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("experiment_attempt", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("charged", sa.Boolean(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("started_monotonic_s", sa.Double(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("energy_mj", sa.Double(), nullable=True),
        sa.Column("uncertainty_mj", sa.Double(), nullable=True),
        sa.Column("method", sa.String(length=32), nullable=True),
        sa.Column("scope", sa.String(length=32), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("flags", JSON, nullable=True),
        sa.Column("integral_mj", sa.Double(), nullable=True),
        sa.Column("integral_uncertainty_mj", sa.Double(), nullable=True),
        sa.Column("sample_count", sa.Integer(), nullable=False),
        sa.Column("largest_gap_s", sa.Double(), nullable=True),
        sa.Column("seen_flags", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["device_key"], ["devices.key"], name=op.f("fk_windows_device_key"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_windows_experiment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_windows_run_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_windows")),
    )
    op.create_index("ix_windows_device", "windows", ["device_key", "started_monotonic_s"], unique=False)
    op.create_index("ix_windows_experiment", "windows", ["experiment_id", "phase"], unique=False)
    op.create_index("ix_windows_run", "windows", ["run_key", "attempt"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_windows_run", table_name="windows")
    op.drop_index("ix_windows_experiment", table_name="windows")
    op.drop_index("ix_windows_device", table_name="windows")

    op.drop_table("windows")
    op.drop_table("metrics")
    op.drop_table("attempts")
    op.drop_index("ix_runs_state", table_name="runs")
    op.drop_index(op.f("ix_runs_arm_key"), table_name="runs")

    op.drop_table("runs")
    op.drop_index("ix_power_samples_series", table_name="power_samples")

    op.drop_table("power_samples")
    op.drop_index("ix_comparisons_found", table_name="comparisons")
    op.drop_index(op.f("ix_comparisons_arm_key"), table_name="comparisons")

    op.drop_table("comparisons")
    op.drop_index("ix_board_states_series", table_name="board_states")

    op.drop_table("board_states")
    op.drop_index("ix_experiment_tags_found", table_name="experiment_tags")

    op.drop_table("experiment_tags")
    op.drop_table("experiment_attempts")
    op.drop_index("ix_events_log", table_name="events")

    op.drop_table("events")
    op.drop_index(op.f("ix_devices_name"), table_name="devices")

    op.drop_table("devices")
    op.drop_index("ix_arms_shape", table_name="arms")

    op.drop_table("arms")
    op.drop_index(op.f("ix_api_keys_experiment_id"), table_name="api_keys")

    op.drop_table("api_keys")
    op.drop_table("switches")
    op.drop_table("idempotency_keys")
    op.drop_table("heartbeats")
    op.drop_index("ix_experiments_queue", table_name="experiments")
    op.drop_index("ix_experiments_name", table_name="experiments")

    op.drop_table("experiments")
