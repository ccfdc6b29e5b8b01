"""The terminal view shows what is stored, moves as it is told, and pages without reading trajectories."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console

from actors.storage.reader import Archive, segment_path
from orchestration.archive.terminal import Browser
from tests.orchestration.archive.dialogues import decode


def browse(archive: Archive, commands: Iterable[str], page_size: int = 2) -> str:
    """What is on the screen after these commands; then the input ends."""
    typed = iter(commands)

    def ask(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    out = io.StringIO()
    console = Console(file=out, width=140)
    Browser(archive, archive.rows, decode, console=console, page_size=page_size, ask=ask).run()
    return out.getvalue()


def test_pages_go_forth_and_back_and_stay_within_the_list(archive: Archive) -> None:
    titles = [line for line in browse(archive, ["", "n", "p", "p", "q"]).splitlines() if "trajectories, page" in line]
    assert [title.split(",")[0] for title in titles] == [
        "1-2 of 4 trajectories",
        "3-4 of 4 trajectories",
        "3-4 of 4 trajectories",
        "1-2 of 4 trajectories",
        "1-2 of 4 trajectories",
    ]


def test_a_trajectory_is_opened_step_by_step(archive: Archive) -> None:
    opened = browse(archive, ["2", "q"])
    assert "1/6  prompt" in opened and "2/6" not in opened
    second = browse(archive, ["2", "", "q"])
    assert "2/6  turn 0, weights 0.3  (8 tokens, mean log-probability -0.338)" in second and "3/6" not in second
    assert "Show it." in second
    assert "print(1)  # call 0" in second and "NameError: name 'show' is not defined" in second
    whole = browse(archive, ["2", "a", "q"])
    assert "6/6  turn 2" in whole and "The answer is 42." in whole
    past_the_end = browse(archive, ["2", "a", "", "q"])  # Enter at the end goes back to the list
    assert past_the_end.count("page 1 of 2") == 2


def test_tokens_are_shown_one_by_one_with_their_probabilities(archive: Archive) -> None:
    shown = browse(archive, ["2", "", "t"])
    line = next(line for line in shown.splitlines() if line.rstrip().endswith("'S'"))
    assert line.split() == ["0", str(ord("S")), "-2.0000", "13.5%", "'S'"]


def test_the_group_is_shown_beside_its_rollout(archive: Archive) -> None:
    shown = browse(archive, ["1", "g"])
    assert all(f"rl/0/0/{sample}" in shown for sample in range(4))


def test_what_is_no_command_is_told(archive: Archive) -> None:
    assert "'99' is no command and no number of the list" in browse(archive, ["99"])


def test_paging_reads_no_trajectory_and_damage_is_told_where_it_is_opened(archive: Archive) -> None:
    path = segment_path(archive.folder, 0)
    path.write_bytes(bytes(path.stat().st_size))
    shown = browse(Archive(archive.folder), ["n", "p", "1", "q"])
    assert shown.count("rl/0/0/0") == 4  # three times page 1, and the damage
    assert "segment-00000.gra, byte" in shown and "(trajectory rl/0/0/0): the frame fails its checksum" in shown


def test_what_a_model_wrote_is_not_taken_for_markup(archive: Archive) -> None:
    assert "</script><b>13</b>" in browse(archive, ["4", "a", "q"])
    assert "[/sums]" in browse(archive, ["q"])


def test_what_a_model_wrote_can_t_control_the_terminal(archive: Archive) -> None:
    shown = browse(archive, ["3", "a", "q"])
    assert "unknown tool '[/x]␛[2J'" in shown
    assert "\x1b" not in shown
