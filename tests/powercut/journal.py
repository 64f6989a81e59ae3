"""What a manager makes of the journal that a power cut has left, without a port or a process."""

from pathlib import Path

from rlboost_jax.manager.journal_entries import RunState
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.journal_files import JournalFiles
from rlboost_jax.manager.settings import Settings
from rlboost_jax.settings.config_loading import read_run_config, read_run_id
from tests.powercut.history import Promise


def lost(workdir: Path, promise: Promise) -> list[str]:
    """What the journal no longer says and has to. The journal is changed as a manager would."""
    run, run_id = read_run_config(workdir), read_run_id(workdir)
    journal = JournalFiles(workdir / "journal", run_id)
    entries, _ = journal.read()
    journal.close()
    Manager(Settings.of(run, run_id), 0.0).recover(entries, 0.0)
    states = [entry for entry in entries if isinstance(entry, RunState)]
    if promise.over or not promise.names:
        return []
    if not states:
        return ["names and money are lost"]
    wrong = []
    if states[-1].numbers + states[-1].fleet_numbers < promise.names:
        wrong.append("names would be given twice")
    if states[-1].dollars < promise.dollars:
        wrong.append(f"{promise.dollars - states[-1].dollars:g} dollars are lost")
    return wrong
