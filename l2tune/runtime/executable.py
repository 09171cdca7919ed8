"""A compiled kernel on one device, and the same kernel bound to one problem, ready to launch.

Binding evaluates the contract's expressions once; a bound launch writes pointers into a prepared
parameter block and calls the driver. Both the gate and dispatch launch through here, so what was
proven is what runs.
"""

import ctypes
import itertools
import threading
from typing import Any, NamedTuple

from l2tune.runtime import driver
from l2tune.spec import geometry
from l2tune.spec.geometry import LaunchGeometry, MapGeometry
from l2tune.spec.gpu import Gpu
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import Problem
from l2tune.store.artifacts import Artifacts

_POINTERS = ("a", "b", "c", "workspace")
_NUMBER = len(_POINTERS)  # kinds of parameters from here on, see `Parameter`
_LONG = ("stride_a", "stride_b", "stride_c")
_SLOT_BYTES = 128  # as large as a tensor map, and keeps its 64-byte alignment
_INT_MAX = 2**31 - 1


class Parameter(NamedTuple):
    """One argument of a described launch.

    Attributes:
        kind: 0 to 3: the address of a, b, c or the workspace; 4: a number; 5 to 7: a tensor map of
            a, b or c.
        data: Eight bytes of a number, or a tensor map's; empty for an address.
        address: What the tensor map points to.
    """

    kind: int
    data: bytes
    address: int


class LaunchDescription(NamedTuple):
    """One launch in bytes, for a launcher that is not Python.

    Attributes:
        function: The driver's handle.
        config: A `CUlaunchConfig` whose stream and attributes are to be filled in.
        attributes: The array of `CUlaunchAttribute`.
        parameters: In order.
    """

    function: int
    config: bytes
    attributes: bytes
    parameters: tuple[Parameter, ...]


class Executable:
    """A kernel loaded into one device's context.

    Raises:
        LaunchRefusedError: If the driver does not take a cubin or lacks an entry.
        FileNotFoundError: If a cubin is missing from the artifact store, or damaged.
    """

    def __init__(self, compiled: Compiled, artifacts: Artifacts, *, device: int = 0) -> None:
        """Load every cubin of `compiled`."""
        self.compiled = compiled
        self.device = device
        modules = []
        for digest in compiled.cubins:
            cubin = artifacts.get(digest)
            if cubin is None:
                raise FileNotFoundError(f"cubin {digest} is missing from the cache, or damaged")
            modules.append(driver.load_module(cubin))
        many = len(modules) > 1
        self._functions = [
            modules[index if many else 0].get_function(data.kernel)
            for index, data in enumerate(compiled.launches)
        ]

    def bind(self, problem: Problem, gpu: Gpu) -> "BoundKernel":
        """Evaluate the contract for `problem`.

        Raises:
            LaunchRefusedError: If the driver refuses the shared memory asked for.
            ValueError: If a size does not fit the contract's C types, or the grid is impossible.
        """
        return BoundKernel(self, [function.ptr for function in self._functions], problem, gpu)


class BoundKernel:
    """One problem's launches: geometry and parameters fixed, pointers still open.

    Attributes:
        workspace_bytes: Scratch memory to pass, 0 for none.
        workspace_zeroed: Whether it must be zero on entry.
    """

    def __init__(
        self, executable: Executable, functions: list[int], problem: Problem, gpu: Gpu
    ) -> None:
        """Evaluate every expression for `problem` on `gpu`."""
        source = executable.compiled.source
        names = source.names(problem, gpu)
        self._executable = executable  # keeps the modules loaded
        self.workspace_bytes = source.header.workspace(names)
        self.workspace_zeroed = source.header.workspace_zeroed
        self._lock = threading.Lock()
        maps = geometry.tensor_maps(executable.compiled, problem, gpu)
        self._launches = [
            _BoundLaunch(launch, functions[launch.index], executable, names, maps)
            for launch in geometry.launches(executable.compiled, problem, gpu)
        ]

    def __call__(self, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        """Launch on `stream`; every argument is an address or a handle.

        Raises:
            LaunchRefusedError: If the driver refuses a launch or a tensor map.
        """
        with self._lock:  # the parameter blocks are shared by all threads
            for launch in self._launches:
                launch(a, b, c, workspace, stream)

    def describe(self, address: int) -> tuple[LaunchDescription, ...]:
        """The same launches, for a launcher that is not Python; this object must outlive it.

        Args:
            address: Of device memory: what tensor maps point to until they are moved.

        Raises:
            LaunchRefusedError: If the driver refuses a tensor map.
        """
        return tuple(launch.describe(address) for launch in self._launches)


class _BoundLaunch:
    """One launch with its parameter block."""

    def __init__(
        self,
        launch: LaunchGeometry,
        function: int,
        executable: Executable,
        names: dict[str, int],
        maps: dict[str, MapGeometry],
    ) -> None:
        self._function = function
        self._device = executable.device
        self._launch = launch
        if launch.smem_bytes:
            driver.allow_shared_memory(function, launch.smem_bytes)
        self._configs: dict[int, Any] = {}
        count = len(launch.args) + launch.extra_pointers
        self._block = ctypes.create_string_buffer(_SLOT_BYTES * (count + 1))
        start = -(-ctypes.addressof(self._block) // _SLOT_BYTES) * _SLOT_BYTES
        slots = [start + _SLOT_BYTES * index for index in range(count)]
        self._slots = slots
        self._params = (ctypes.c_void_p * max(count, 1))(*slots)
        self._params_address = ctypes.addressof(self._params)
        self._pointer_slots: list[tuple[int, Any]] = []
        self._map_slots: list[_MapSlot] = []
        for slot, arg in zip(slots, launch.args, strict=False):
            if arg in _POINTERS:
                pointer = ctypes.c_uint64.from_address(slot)
                self._pointer_slots.append((_POINTERS.index(arg), pointer))
            elif arg.startswith("tma."):
                dtype = executable.compiled.source.dtype
                self._map_slots.append(_MapSlot(slot, maps[arg.removeprefix("tma.")], dtype))
            elif arg in _LONG:
                ctypes.c_int64.from_address(slot).value = names[arg]
            else:
                if names[arg] > _INT_MAX:
                    raise ValueError(f"{arg} is {names[arg]}, needed at most {_INT_MAX}")
                ctypes.c_int32.from_address(slot).value = names[arg]

    def __call__(self, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        pointers = (a, b, c, workspace)
        for index, slot in self._pointer_slots:
            slot.value = pointers[index]
        for map_slot in self._map_slots:
            map_slot.write(pointers)
        config = self._configs.get(stream)
        if config is None:
            config = driver.launch_config(self._launch, stream)
            self._configs[stream] = config
        driver.launch(config, self._function, self._params_address, self._device)

    def describe(self, address: int) -> LaunchDescription:
        maps = iter(self._map_slots)
        parameters = []
        for slot, arg in itertools.zip_longest(self._slots, self._launch.args):
            if arg in _POINTERS:
                parameters.append(Parameter(_POINTERS.index(arg), b"", 0))
            elif arg is not None and arg.startswith("tma."):
                parameters.append(next(maps).describe(address - address % _SLOT_BYTES))
            else:  # the slot of a null pointer is zero from the start
                parameters.append(Parameter(_NUMBER, ctypes.string_at(slot, 8), 0))
        config, attributes = driver.launch_bytes(self._launch)
        return LaunchDescription(self._function, config, attributes, tuple(parameters))


class _MapSlot:
    """A tensor map in a parameter block; only its base address changes from call to call."""

    def __init__(self, slot: int, tensor_map: MapGeometry, dtype: str) -> None:
        self._slot, self._operand = slot, _POINTERS.index(tensor_map.operand)
        self._described, self._dtype = tensor_map, dtype
        self._map: Any = None
        self._address = -1

    def write(self, pointers: tuple[int, int, int, int]) -> None:
        """Make the slot describe this call's operand."""
        address = pointers[self._operand]
        if address == self._address:
            return
        if self._map is None:
            self._map = driver.encode_tensor_map(self._described, address, dtype=self._dtype)
        else:
            driver.move_tensor_map(self._map, address)
        ctypes.memmove(self._slot, int(self._map.getPtr()), driver.TENSOR_MAP_BYTES)
        self._address = address

    def describe(self, address: int) -> Parameter:
        encoded = driver.encode_tensor_map(self._described, address, dtype=self._dtype)
        data = ctypes.string_at(int(encoded.getPtr()), driver.TENSOR_MAP_BYTES)
        return Parameter(_NUMBER + 1 + self._operand, data, address)
