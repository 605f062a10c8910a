"""Record NVML: records a real driver's answers to the sampler, to replay on machines without a GPU.

python -m ranklake.capture.samplers.record_nvml --seconds 10 --out FILE
"""

import argparse
import json
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

from ranklake.capture.samplers.gpu import GpuSampler
from ranklake.capture.samplers.nvml import Nvml, load_nvml, text, why
from ranklake.capture.samplers.nvml_tape import Tape
from ranklake.errors import RanklakeError


class NoDeviceError(RanklakeError):
    """There is no device to record."""


def record(nvml: Nvml, seconds: int, out: Path) -> int:
    """Sample for so many seconds, once each, and write the tape; return how many calls it holds.

    Host name, serial numbers and UUIDs are recorded as they are: look at the file before it is given away.

    Raises
    ------
    NoDeviceError
        NVML cannot be initialised. No file is left.
    OSError
        The file cannot be written.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        hint = "run it where nvidia-smi shows a device"
        raise NoDeviceError(f"nothing can be recorded: {why(nvml, error.value)}", where="NVML", hint=hint) from error
    about = {
        "about": "NVML as nvidia-ml-py has it, recorded on a device by ranklake.capture.samplers.record_nvml",
        "recorded": True,
        "when": datetime.now(UTC).isoformat("T", "seconds"),
        "platform": platform.platform(),
        "driver": text(nvml.nvmlSystemGetDriverVersion()),
        "devices": [
            text(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(at))) for at in range(nvml.nvmlDeviceGetCount())
        ],
    }
    with out.open("w", encoding="utf-8") as file:
        file.write(json.dumps(about) + "\n")
        tape = Tape(nvml, file)
        sampler = GpuSampler(tape, dict)
        began = time.monotonic()
        for tick in range(seconds):
            tape.tick = tick
            list(sampler.sample(time.monotonic_ns()))
            time.sleep(max(0.0, began + tick + 1 - time.monotonic()))
        sampler.close()
        sampler.join()
    return len(out.read_text(encoding="utf-8").splitlines()) - 1


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    try:
        calls = record(load_nvml(), chosen.seconds, chosen.out)
    except NoDeviceError as error:
        parser.exit(1, f"{error}\n")
    parser.exit(0, f"{calls} calls in {chosen.out}\n")


if __name__ == "__main__":
    main()
