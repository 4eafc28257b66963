"""A vendor's device whose memory is a Millpond pool: examples/torch_device, built against this PyTorch."""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[3]


def check_a_new_device_trains_in_a_pool():
    import torch

    headers = pathlib.Path(torch.__file__).parent
    example = ROOT / "examples" / "torch_device"
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/libpond.so"
        subprocess.run(
            ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden",
             f"-I{ROOT}/include", f"-isystem{headers}/include", f"-isystem{headers}/include/torch/csrc/api/include",
             "-o", made, str(example / "backend.cpp"), os.environ["MILLPOND_TORCH_ARCHIVE"],
             f"-L{headers}/lib", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl", "-lpthread", "-lm"], check=True)
        done = subprocess.run([sys.executable, str(example / "train.py"), made], stdout=subprocess.PIPE, text=True, check=True)
    assert "to the last bit" in done.stdout and "out of memory" in done.stdout, done.stdout
