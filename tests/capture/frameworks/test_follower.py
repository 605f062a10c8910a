"""Follower: training whose steps nobody ends, as with an optimizer that is none of torch's, takes no more memory."""

import torch
from recorded import rows

from ranklake.capture.fingerprint import fingerprint
from ranklake.capture.frameworks import follower as followers
from ranklake.capture.frameworks.follower import MOST_MICRO, Follower
from ranklake.capture.frameworks.torch import HOOKS


def test_a_step_that_never_ends_keeps_no_loss_for_ever(place):
    """Thousands of backward passes leave as many losses and phases behind as a thousand, and count as no loss."""
    run = place.start()
    followed = Follower(run)
    followers.FOLLOWED[:] = [followed]
    weight = torch.ones(1, requires_grad=True)
    try:
        for _ in range(2 * MOST_MICRO):
            HOOKS.backward(torch.autograd.backward, weight.sum())
    finally:
        followers.FOLLOWED.clear()
    assert len(followed.losses) == MOST_MICRO
    assert len(followed._known) <= MOST_MICRO + 1
    followed.end_step()
    run.close()
    assert run.gaps() == {}


def test_a_frameworks_checkpoint_is_told_without_credentials(place):
    """Its place may be a URL with a user, and signed."""
    with place.start() as run:
        Follower(run).checkpoint("s3://me:hunter2@bucket/step-1.ckpt?token=hunter2", 1, 0.5)
    (row,) = rows(place.spool, "artifacts")
    assert (row["name"], row["uri"]) == ("step-1.ckpt?token=[redacted]", "s3://bucket/step-1.ckpt?token=[redacted]")


def test_a_folder_that_other_ranks_may_write_still_is_hashed_after_the_next_step(place, tmp_path):
    """Their part comes after this rank has told of its own; the time is that of this rank's."""
    run = place.start(rank=0, world_size=2)
    followed, folder = Follower(run), tmp_path / "state"
    folder.mkdir()
    (folder / "rank-0").write_bytes(b"0")
    followed.begin_step()
    followed.checkpoint(folder, 0, 0.5)
    run.event("between")
    (folder / "rank-1").write_bytes(b"1")
    followed.end_step()
    run.close()
    (row,) = rows(place.spool, "artifacts")
    assert (row["sha256"], row["file_count"]) == (fingerprint(folder).sha256, 2)
    (between,) = (event for event in rows(place.spool, "events") if event["event"] == "between")
    assert row["ts"] <= between["ts"]
