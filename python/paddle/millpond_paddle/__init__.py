"""Millpond as a device of PaddlePaddle, for who asks for it.

    import millpond_paddle
    millpond_paddle.enable()             # before the first `import paddle`
    import paddle
    paddle.set_device("millpond:0")

PaddlePaddle loads every library in one folder, and makes the first device type that it finds there its default device. So
this package stays out of that folder; `enable` loads its plugin beside those of other vendors, and the default device
is what it was without it. A process that does not call it knows nothing of Millpond, be it a child of one that does.
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import site
import sys
import tempfile
from typing import Dict, Iterator, List, Optional

__all__ = ["device_type", "enable", "is_enabled", "plugin_path"]
__version__ = "0.1.0"

_FOLDER = "CUSTOM_DEVICE_ROOT"
_TYPE = "MILLPOND_PLUGIN_TYPE"
_SERVES = "MILLPOND_PLUGIN_DEVICE"
_enabled = False


def plugin_path() -> str:
    """Where the plugin is, for those who fill PaddlePaddle's folder themselves."""
    return str(pathlib.Path(__file__).resolve().parent / "plugin" / "libmillpond-plugin.so")


def device_type() -> str:
    """The name of the device type, "millpond" unless MILLPOND_PLUGIN_TYPE says otherwise."""
    return os.environ.get(_TYPE) or "millpond"


def is_enabled() -> bool:
    """Whether `enable` has loaded it in this process."""
    return _enabled


def _folder() -> Optional[pathlib.Path]:
    """The folder from which PaddlePaddle would load plugins."""
    named = os.environ.get(_FOLDER)
    if named is not None:
        return pathlib.Path(named) if named else None
    for where in site.getsitepackages() + [site.getusersitepackages()]:
        folder = pathlib.Path(where) / "paddle_custom_device"
        if folder.is_dir():
            return folder
    return None


def _others(folder: Optional[pathlib.Path]) -> Iterator[pathlib.Path]:
    if folder is None or not folder.is_dir():
        return
    for file in sorted(folder.iterdir()):
        # Another copy of ours would be a second device type of the same name.
        if file.is_file() and file.suffix == ".so" and file.name != "libmillpond-plugin.so":
            yield file


def _default(types: List[str], ours: str) -> Optional[str]:
    """The device that PaddlePaddle would begin with if we were not there; None: it does not begin with us anyway."""
    import paddle

    if paddle.is_compiled_with_cuda() or paddle.is_compiled_with_xpu():
        return None
    for kind in types:
        if kind != ours:
            # It looks at the first type only.
            has_any = paddle.base.core.get_custom_device_count(kind) > 0
            return f"{kind}:0" if has_any else "cpu"
    return "cpu"


@contextlib.contextmanager
def _environment(values: Dict[str, str]) -> Iterator[None]:
    """Inside, the environment has these values, too; then it is what it was."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def enable(serve: Optional[str] = None) -> None:
    """Imports PaddlePaddle with Millpond as one of its device types, "millpond".

    `serve` names the Millpond device type that its devices are: "host" (the default) or "cpu"; None: what
    MILLPOND_PLUGIN_DEVICE says. The environment is then as it was.
    RuntimeError if PaddlePaddle was imported before, or did not take the plugin; ImportError if it is not there. A second
    call does nothing.
    """
    global _enabled
    if _enabled:
        return
    if "paddle" in sys.modules:
        raise RuntimeError("PaddlePaddle loads plugins as it is imported: call millpond_paddle.enable() before that")
    # A link for each: they are loaded from here, all of them, and this folder is not needed after that.
    links = os.path.abspath(tempfile.mkdtemp(prefix="millpond-paddle-"))
    try:
        for file in [pathlib.Path(plugin_path()), *_others(_folder())]:
            # From another folder, a relative path would lead elsewhere.
            os.symlink(file.absolute(), os.path.join(links, file.name))
        values = {_FOLDER: links}
        if serve is not None:
            values[_SERVES] = serve  # the plugin reads it once, as it is loaded
        with _environment(values):
            import paddle
    finally:
        shutil.rmtree(links, ignore_errors=True)
    types = list(paddle.device.get_all_custom_device_type())
    if device_type() not in types:
        raise RuntimeError(
            f"PaddlePaddle {paddle.__version__} did not take the plugin {plugin_path()}; GLOG_v=1 in the environment "
            "makes it say why"
        )
    default = _default(types, device_type())
    if default is not None:
        paddle.set_device(default)
    _enabled = True
