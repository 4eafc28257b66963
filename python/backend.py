"""Builds the wheels of this repository: the build backend of their pyproject.toml, and what scripts/wheels.sh calls.

A wheel is made from an installed Millpond (`cmake --install`): the one that the setting `prefix`, or MILLPOND_PREFIX,
names, else one that is built here. The table [tool.millpond] of a pyproject.toml says what goes in:

    package = "millpond"             the folder of Python code, which goes in whole
    install = [["lib/x.so", "lib/"]] files of the prefix (globs), and the folder in the package; links are followed
    scripts = ["bin/millpond"]       programs that go into the environment's bin
    cmake = ["-D..."]                what else CMake is told where it builds for this wheel
    code = "python"                  where the folder of Python code is

The tag is what the files really need: manylinux with the newest version of the C library that any of them asks for, and
the plain tag of this machine where one needs a library that manylinux does not promise. Python's own library only.
"""
from __future__ import annotations

import base64
import glob
import hashlib
import os
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

try:
    import tomllib
except ImportError:  # before Python 3.11
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What PEP 600 lets a wheel expect of the machine, as far as we may come to need it.
PROMISED = re.compile(r"^(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.\d+|ld-linux.*)$")
# From which version of the C library on a manylinux tag promises these of the C++ library.
CXX = {"GLIBCXX": [((3, 4, 19), (2, 17)), ((3, 4, 24), (2, 28)), ((3, 4, 28), (2, 31)), ((3, 4, 29), (2, 34)),
                   ((3, 4, 30), (2, 35)), ((3, 4, 33), (2, 39))],
       "CXXABI": [((1, 3, 7), (2, 17)), ((1, 3, 11), (2, 28)), ((1, 3, 12), (2, 31)), ((1, 3, 13), (2, 34)),
                  ((1, 3, 15), (2, 39))]}
EPOCH = (1980, 1, 1, 0, 0, 0)  # of all files: the same input makes the same wheel


# --- ELF -----------------------------------------------------------------------------------------------------------


class Elf:
    """The libraries that a 64-bit ELF file needs, and the versions of them: (library, version)."""

    def __init__(self, data: bytes) -> None:
        self.needed: set[str] = set()
        self.versions: set[tuple[str, str]] = set()
        little = data[5] == 1
        self._order = "<" if little else ">"
        if data[4] != 2:
            raise ValueError("not a 64-bit file")
        (offset,) = self._read(data, "Q", 40)
        size, count, _ = self._read(data, "HHH", 58)
        sections = [self._read(data, "IIQQQQIIQQ", offset + i * size) for i in range(count)]
        for _, kind, _, _, at, length, link, info, _, _ in sections:
            strings = sections[link][4] if link < count else 0

            def text(where: int) -> str:
                start = strings + where
                return data[start : data.index(b"\0", start)].decode()

            if kind == 6:  # SHT_DYNAMIC
                for entry in range(at, at + length, 16):
                    tag, value = self._read(data, "QQ", entry)
                    if tag == 1:  # DT_NEEDED
                        self.needed.add(text(value))
            elif kind == 0x6FFFFFFE:  # SHT_GNU_verneed
                for _ in range(info):
                    _, entries, file, first, following = self._read(data, "HHIII", at)
                    entry = at + first
                    for _ in range(entries):
                        _, _, _, name, more = self._read(data, "IHHII", entry)
                        self.versions.add((text(file), text(name)))
                        entry += more
                    at += following

    def _read(self, data: bytes, form: str, at: int) -> tuple:
        return struct.unpack_from(self._order + form, data, at)


def glibc_for(version: str) -> tuple[int, int] | None:
    """The oldest C library whose manylinux tag promises this symbol version; None if none does."""
    kind, _, text = version.partition("_")
    if kind not in ("GLIBC", *CXX):
        return (2, 17)
    if not re.fullmatch(r"[0-9.]+", text):
        return None
    number = tuple(int(part) for part in text.split("."))
    if kind == "GLIBC":
        return (number[0], number[1])
    return next((glibc for most, glibc in CXX[kind] if number <= most), None)


def platform_tag(files: dict[str, bytes]) -> tuple[str, list[str]]:
    """The tag for these ELF files, and in words why it is no better."""
    machine = platform.machine()
    newest, why, foreign = (2, 17), [], []
    for name, data in files.items():
        elf = Elf(data)
        foreign += [f"{name} needs {library}" for library in sorted(elf.needed) if not PROMISED.match(library)
                    and not library.startswith("libmillpond.so.")]
        for library, version in sorted(elf.versions):
            wanted = glibc_for(version)
            if wanted is None:
                foreign.append(f"{name} needs {version} of {library}")
            elif wanted > newest:
                newest, why = wanted, [f"{name} needs {version} of {library}"]
    if foreign:
        return f"linux_{machine}", foreign
    return f"manylinux_{newest[0]}_{newest[1]}_{machine}", why


# --- contents ------------------------------------------------------------------------------------------------------


def command(*words: object) -> None:
    subprocess.run([str(w) for w in words], check=True)


def installed(scratch: pathlib.Path, options: list[str]) -> pathlib.Path:
    """Builds and installs Millpond, with these options for CMake."""
    build = pathlib.Path(os.environ.get("MILLPOND_BUILD", scratch / "build"))
    parts = ["TESTS", "EXAMPLES", "TORCH"]
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    command("cmake", "-S", ROOT, "-B", build, *generator, "-DCMAKE_BUILD_TYPE=Release", "-DMILLPOND_INSTALL=ON",
            "-DCMAKE_INSTALL_LIBDIR=lib", *[f"-DMILLPOND_BUILD_{part}=OFF" for part in parts], *options)
    command("cmake", "--build", build, "--parallel", os.cpu_count() or 1)
    command("cmake", "--install", build, "--prefix", scratch / "prefix")
    return scratch / "prefix"


def stripped(path: pathlib.Path, data: bytes) -> bytes:
    """Without what only a debugger reads."""
    tool = shutil.which("strip")
    if tool is None or data[:4] != b"\x7fELF":
        return data
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "file"
        copy.write_bytes(data)
        command(tool, "--strip-unneeded", copy)
        return copy.read_bytes()


def content_of(file: pathlib.Path) -> bytes:
    data = stripped(file, file.read_bytes())
    if file.suffix == ".cmake":
        # A wheel has no links: the library is there under its soname only.
        data = re.sub(rb"libmillpond\.so\.(\d+)\.\d+\.\d+", rb"libmillpond.so.\1", data)
    return data


def collected(project: pathlib.Path, table: dict, prefix: pathlib.Path) -> dict[str, tuple[bytes, int]]:
    """Path in the wheel: (content, mode)."""
    package, files = table["package"], {}
    code = project / table.get("code", ".") / package
    for file in sorted(code.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            files[f"{package}/{file.relative_to(code)}"] = (file.read_bytes(), 0o644)
    for pattern, folder in table.get("install", []):
        found = sorted(glob.glob(str(prefix / pattern), recursive=True))
        if not found:
            raise SystemExit(f"{prefix} has no {pattern}; install all of Millpond there, with -DCMAKE_INSTALL_LIBDIR=lib")
        base = pathlib.Path(str(prefix / pattern).split("*")[0])
        base = base if base.is_dir() else base.parent
        for name in map(pathlib.Path, found):
            if name.is_file():
                target = f"{package}/{folder}{name.relative_to(base)}"
                files[target] = (content_of(name), 0o755 if os.access(name, os.X_OK) else 0o644)
    return files


def tool_of(settings: dict, name: str, variable: str) -> str | None:
    return settings.get(name) or os.environ.get(variable) or None


# --- the wheel -----------------------------------------------------------------------------------------------------


def metadata(project: pathlib.Path, about: dict) -> bytes:
    lines = [
        "Metadata-Version: 2.4", f"Name: {about['name']}", f"Version: {about['version']}",
        f"Summary: {about['description']}", f"Requires-Python: {about['requires-python']}",
        f"License-Expression: {about['license']}",
    ]
    lines += [f"License-File: {name}" for name in LICENSES]
    lines += [f"Classifier: {text}" for text in about.get("classifiers", [])]
    lines += [f"Requires-Dist: {text}" for text in about.get("dependencies", [])]
    lines += ["Description-Content-Type: text/markdown", "", (project / about["readme"]).read_text()]
    return "\n".join(lines).encode()


# Name in the wheel, and where it is here. The pages of `millpond view` contain uPlot.
LICENSES = {"LICENSE-MIT": "LICENSE-MIT", "LICENSE-APACHE": "LICENSE-APACHE", "LICENSE-uPlot": "cli/third_party/uplot/LICENSE"}


def wheel(project: pathlib.Path, folder: pathlib.Path, settings: dict) -> str:
    """Writes the wheel of the project into the folder; its name."""
    described = tomllib.loads((project / "pyproject.toml").read_text())
    about, table = described["project"], described["tool"]["millpond"]
    with tempfile.TemporaryDirectory(prefix="millpond-wheel-") as scratch:
        prefix = tool_of(settings, "prefix", "MILLPOND_PREFIX")
        source = pathlib.Path(prefix).resolve() if prefix else installed(pathlib.Path(scratch), table.get("cmake", []))
        files = collected(project, table, source)
        name, version = about["name"].replace("-", "_"), about["version"]
        for program in table.get("scripts", []):
            file = source / program
            if not file.is_file():
                raise SystemExit(f"{source} has no {program}; build with -DMILLPOND_BUILD_COMMAND=ON")
            files[f"{name}-{version}.data/scripts/{file.name}"] = (stripped(file, file.read_bytes()), 0o755)
    tag, why = platform_tag({path: data for path, (data, _) in files.items() if data[:4] == b"\x7fELF"})
    for reason in why:
        print(f"{about['name']}: {tag}, as {reason}", file=sys.stderr)

    info = f"{name}-{version}.dist-info"
    files[f"{info}/METADATA"] = (metadata(project, about), 0o644)
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: millpond\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n".encode(), 0o644
    )
    for group, entries in about.get("entry-points", {}).items():
        text = f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        files[f"{info}/entry_points.txt"] = (files.get(f"{info}/entry_points.txt", (b"", 0))[0] + text.encode(), 0o644)
    for text, place in LICENSES.items():
        files[f"{info}/licenses/{text}"] = ((ROOT / place).read_bytes(), 0o644)
    record = []
    for path, (data, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(data)}")
    files[f"{info}/RECORD"] = ("\n".join(record + [f"{info}/RECORD,,", ""]).encode(), 0o644)

    folder.mkdir(parents=True, exist_ok=True)
    made = f"{name}-{version}-py3-none-{tag}.whl"
    with zipfile.ZipFile(folder / made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, (data, mode) in files.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return made


# --- PEP 517 -------------------------------------------------------------------------------------------------------


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return wheel(pathlib.Path.cwd(), pathlib.Path(wheel_directory), config_settings or {})


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("there is no source distribution: build the wheel from a checkout of the repository")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: backend.py FOLDER PROJECT...: writes the wheels of these projects into the folder")
    for each in sys.argv[2:]:
        print(wheel(pathlib.Path(each).resolve(), pathlib.Path(sys.argv[1]).resolve(), {}))
