"""Settings of alerts: who is called when a run needs somebody."""

from dataclasses import dataclass

from rlboost_jax.settings.setting import setting


@dataclass(frozen=True, kw_only=True)
class AlertsConfig:
    """A command, a webhook or both, called when the run ends or breaks, and beyond these limits;
    see docs/how-to/page.md."""

    command: tuple[str, ...] = setting(
        (),
        "program and arguments; it gets the alert as JSON on standard input",
        note="For at most 30 s. Its environment has RLBOOST_ALERT, the kind of the alert.",
    )
    webhook_file: str = setting(
        "",
        'a file with the URL to which the alert is sent as JSON; "": none',
        note="A file, since such a URL is a secret: it stands in no configuration and no log.",
    )
    reward_share: float = setting(
        0.0,
        "share of the best mean reward of ten steps; ten steps below it are an alert; 0: never",
        at_least=0.0,
        at_most=1.0,
    )
    no_server_minutes: float = setting(
        0.0, "time without a ready preemptible server; 0: never", unit="min", at_least=0.0
    )
    spend_dollars: float = setting(
        0.0,
        "dollars spent by the run; 0: never",
        note="A fleet on the trainer's own host spends none without fleet.bill_local.",
        unit="$",
        at_least=0.0,
    )
