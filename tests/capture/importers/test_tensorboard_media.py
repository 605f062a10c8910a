"""Images, texts, histograms and settings of event files, beside what TensorBoard itself reads there."""

import base64
import json
import struct
import zlib

import numpy as np
import pytest
from foreign_bytes import record, sub
from importing import ask, imported

from ranklake.capture.assets.image_file import png

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
REAL = (
    b"c-oU-fPlsI-"
    b"b$Q{BgE3>4&QQ=;!P?_%*@ksElbTSu`+t~_wFVss5+t9H*`5a7f68B2{3E%a&dF9<m49@i!v}MIQZEfUzr0{`SsR@>zpy`bYLpux"
    b"njB4iW74Sa#EFoIhX`kC76}GI|KaOdAX#xfa-ZYJzRo-"
    b"G%FA@aWDZ%d5%Vqgpj9;V@SoE<TdNpr#mqD@T_29&}Cz6ymEZ;7LYxju6{1-"
    b"oD!P$@)sLBLG7;moVSWoWQ88gZc{E}F2Ul&%oP2S)QXb$;?msQ#G*<k5e{}C79l1MMklUB1ud=e{Gt>sEiVo(HZB&By4r`e*7Kky"
    b"-fB7J%DMSC+{6itT)m83?B%JM=@})(T8)gHP=yBsA+&&lB!nU2pa>JugfPq;j5J`XA=HEY5c-2Xgl2JoX|aN-WI$B`qZu4veEy}r"
    b"&ugKAiJ`r9oLA!v!LHRR;ws>hiO(oVEK1BRj@K_vEiTT?&x<cENh~Uf&&*59_X^<h<6?&@5OS7s<Pzp$%So(EEh-"
    b"k`g!+fWfs2=mIWf6Jh)s&6C^e^)i=T@rrwAxNYbFTnwCCdDVoAzOEEZx?U@ZHrTL1viu8iL"
)
"""A file that tensorboardX 2.6.5 wrote, packed: scalar, image, text, histogram and settings, all at step 3."""
AT = 1_700_000_000.5
DOUBLES = (-2.0, 0.0, 1.0, 1.0, 4.0)


def written(folder):
    """Write what each kind of call writes, by tensorboardX, and return its folder."""
    writer = pytest.importorskip("tensorboardX").SummaryWriter(str(folder))
    values = np.random.default_rng(7).normal(size=200)
    for step in (0, 5):
        writer.add_scalar("loss", 2.5 - step / 10, step)
        writer.add_image("sample", np.full((3, 4, 6), step / 5), step)
        writer.add_text("said", f"a **word** at {step}", step)
        writer.add_histogram("weights", values * (step + 1), step)
        writer.add_histogram("ones", np.ones(7), step)
        writer.add_histogram("evenly", values, step, bins=12)
    writer.add_hparams({"lr": 0.1, "layers": 3, "bias": True, "act": "relu"}, {"best": 0.5}, name="trial")
    writer.close()
    return folder


@pytest.mark.slow
def test_beside_tensorboard(lake, spool, tmp_path):
    """Every image, text, histogram, scalar and setting is what TensorBoard's own reader finds, at its step and time."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hparams = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    folder = written(tmp_path / "logs")
    done = imported(lake, spool, "tensorboard", folder)
    assert (done.runs, done.refused) == (["logs", "logs-trial"], {})
    own = reader.EventAccumulator(str(folder), size_guidance=dict.fromkeys(reader.DEFAULT_SIZE_GUIDANCE, 0)).Reload()
    names = own.Tags()
    rows = ask(lake, "SELECT name, kind, step, CAST(ts AS DOUBLE) at, personal_text, personal_image FROM media")
    texts = {(r["name"], r["step"]): r["personal_text"] for r in rows if r["kind"] == "text"}
    assert texts == {
        (tag.removesuffix("/text_summary"), event.step): event.tensor_proto.string_val[0].decode()
        for tag in names["tensors"] for event in own.Tensors(tag)
    }  # fmt: skip
    images = {(r["name"], r["step"]): base64.b64decode(r["personal_image"]) for r in rows if r["kind"] == "image"}
    assert images == {
        (tag, event.step): event.encoded_image_string for tag in names["images"] for event in own.Images(tag)
    }
    scalars = ask(lake, "SELECT metric, step, value, run FROM scalars WHERE run = 'logs'")
    assert {(r["metric"], r["step"], r["value"]) for r in scalars} == {
        (tag, event.step, event.value) for tag in names["scalars"] for event in own.Scalars(tag)
    }
    found = {(r["metric"], r["step"]): r for r in ask(lake, "SELECT * FROM distributions")}
    assert len(found) == sum(len(own.Histograms(tag)) for tag in names["histograms"]) == 6
    for tag in names["histograms"]:
        for event in own.Histograms(tag):
            given, ours = event.histogram_value, found[tag, event.step]
            assert (ours["count"], ours["sum"], ours["min"], ours["max"]) == (
                given.num, given.sum, given.min, given.max,
            )  # fmt: skip
    trial = reader.EventAccumulator(str(folder / "trial")).Reload()
    raw = trial.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    session = hparams.HParamsPluginData.FromString(raw).session_start_info.hparams
    config = json.loads(ask(lake, "SELECT config FROM runs WHERE run = 'logs-trial'")[0]["config"])
    assert config == {"lr": 0.1, "layers": 3, "bias": True, "act": "relu"}
    assert {name: getattr(value, value.WhichOneof("kind")) for name, value in session.items()} == config


def test_a_real_file(lake, spool, tmp_path):
    """What tensorboardX wrote comes whole: nothing is left out."""
    file = tmp_path / "logs" / "events.out.tfevents.1"
    file.parent.mkdir()
    file.write_bytes(zlib.decompress(base64.b85decode(REAL)))
    done = imported(lake, spool, "tensorboard", file)
    assert (done.rows, done.refused) == ({"distributions": 1, "media": 2, "runs": 1, "scalars": 1}, {})
    media = ask(lake, "SELECT name, kind, step, row_count h, column_count w, personal_text t FROM media ORDER BY name")
    assert [tuple(row.values()) for row in media] == [
        ("said", "text", 3, None, None, "a **word**"), ("sample", "image", 3, 2, 5, None),
    ]  # fmt: skip
    row = ask(lake, "SELECT count, sum, min, max, step FROM distributions")[0]
    assert tuple(row.values()) == (5, sum(DOUBLES), -2.0, 4.0, 3)
    run = ask(lake, "SELECT config, labels FROM runs")[0]
    assert json.loads(run["config"]) == {"lr": 0.1, "layers": 3, "bias": True, "act": "relu"}
    assert "not_imported" not in json.loads(run["labels"])


def value(tag, plugin, *parts):
    return sub(1, tag) + (sub(9, sub(1, sub(1, plugin))) if plugin else b"") + b"".join(parts)


def tensor(kind, *sizes, content=b"", texts=()):
    shape = b"".join(sub(2, bytes([8, size])) for size in sizes)
    return sub(8, bytes([8, kind]) + sub(2, shape) + (sub(4, content) if content else b"") + b"".join(
        sub(8, text) for text in texts
    ))  # fmt: skip


def of_bins(*bins):
    return tensor(2, len(bins), 3, content=b"".join(struct.pack("<3d", *row) for row in bins))


def test_values_of_new_writers(lake, spool, tmp_path):
    """Tensors are images, texts and histograms by the plugin of their tag; what cannot be kept is counted by kind."""
    picture = png(np.zeros((2, 3), np.uint8)).raw
    nan = float("nan")
    values = [
        value(b"images", b"images", tensor(7, 4, texts=[b"3", b"2", picture, picture])),
        value(b"movie", b"images", tensor(7, 3, texts=[b"3", b"2", b"GIF89a"])),
        value(b"lines", b"text", tensor(7, 2, texts=[b"one", b"two \xff"])),
        value(b"bins", b"histograms", of_bins((0.0, 1.0, 4.0), (1.0, 2.0, 0.0), (2.0, 2.0, 3.0))),
        value(b"flawed", b"histograms", of_bins((0.0, nan, 4.0))),
        value(b"turned", b"histograms", of_bins((1.0, 0.0, 4.0))),
        value(b"none", b"histograms", of_bins((0.0, 1.0, 0.0))),
        value(b"odd", b"histograms", tensor(2, 2, 3, content=b"\0" * 24)),
        value(b"sound", b"audio", tensor(7, 1, texts=[b"RIFF"])),
        value(b"mesh", b"mesh", tensor(1, 2, content=b"\0" * 8)),
        sub(1, b"") + b"\x15" + struct.pack("<f", 1),
    ]
    later = [value(b"images", b"", tensor(7, 4, texts=[b"3", b"2", picture, picture])), *values[1:]]
    events = b"".join(
        record(b"\x09" + struct.pack("<d", AT) + bytes([0x10, step]) + sub(5, b"".join(sub(1, v) for v in items)))
        for step, items in ((1, values), (2, later))
    )
    file = tmp_path / "events.out.tfevents.1"
    file.write_bytes(record(b"\x09" + struct.pack("<d", AT) + sub(3, b"brain.Event:2")) + events)
    done = imported(lake, spool, "tensorboard", file, run="r")
    assert done.rows == {"distributions": 2, "media": 6, "runs": 1}
    media = ask(lake, "SELECT name, personal_text t, row_count h FROM media WHERE step = 2 ORDER BY name")
    assert [tuple(row.values()) for row in media] == [
        ("images", None, 2), ("images/1", None, 2), ("lines", "one\ntwo \ufffd", None),
    ]  # fmt: skip
    bins = ask(lake, "SELECT count, sum, min, max, positive_counts p FROM distributions WHERE step = 1")[0]
    assert (bins["count"], bins["sum"], bins["min"], bins["max"], sum(bins["p"])) == (7, None, 0.0, 2.0, 7)
    labels = json.loads(ask(lake, "SELECT labels FROM runs")[0]["labels"])
    assert labels["not_imported"] == (
        "2 audio, 8 histograms that are empty, or cannot be read, 2 images that are no PNG or JPEG, or too large, "
        "2 values of other kinds, 2 values without a name"
    )
