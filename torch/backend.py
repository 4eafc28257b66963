"""The build backend is that of the package millpond (../python/backend.py)."""
import importlib.util
import pathlib

_spec = importlib.util.spec_from_file_location(
    "millpond_backend", pathlib.Path(__file__).resolve().parent.parent / "python/backend.py"
)
_backend = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_backend)
build_wheel, build_sdist = _backend.build_wheel, _backend.build_sdist
