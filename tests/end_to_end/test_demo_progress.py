"""How far the demo's training is, told while it runs."""

from threading import Event

from ranklake.demo.facts import _show_progress


def test_the_slowest_rank_is_told(tmp_path):
    """Whole lines of the journals count; a rank that has not begun has none; nothing goes on afterwards."""
    fast, slow = tmp_path / "rank-0.steps", tmp_path / "rank-1.steps"
    fast.write_text("0\n1\n2\n")
    told, begun, gone_on = [], Event(), Event()

    def progress(done, total):
        told.append((done, total))
        begun.set()
        if done:
            gone_on.set()

    with _show_progress([fast, slow], 4, progress):
        assert begun.wait(60)
        slow.write_text("0\n1\n2")
        assert gone_on.wait(60)
    count = len(told)
    assert told[0] == (0, 4)
    assert told[-1] == (2, 4)
    assert len(told) == count
    with _show_progress([fast], 4, None):
        pass
