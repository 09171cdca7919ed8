"""A warp's registers: what is looked at first when several things are wrong with one."""

import numpy as np
import pytest

from l2tune.runtime.emulator.findings import EmulationStopped, Fault
from l2tune.runtime.emulator.warp import FULL


def fault_of_a_read(lab, *, in_flight: bool, defined: np.ndarray | None) -> Fault | None:
    warp = lab.run("mov.u32 %r1, 5;").warp
    register = lab.names["%r1"]
    warp.defined[register.slot] = defined
    if defined is None:
        warp.registers[register.slot] = None
    if in_flight:
        warp.in_flight[register.slot] = "an unfinished wgmma writes it"
    try:
        warp.read(register, FULL)
    except EmulationStopped as stopped:
        return stopped.finding.fault
    return None


@pytest.mark.parametrize("defined", [FULL, None, np.zeros(32, dtype=bool)])
def test_a_register_in_flight_is_named_as_such_though_nothing_was_written_yet(lab, defined):
    found = fault_of_a_read(lab, in_flight=True, defined=defined)
    assert found is Fault.ACCUMULATOR_IN_FLIGHT


def test_a_register_that_no_lane_or_not_every_lane_wrote_is_uninitialised(lab):
    for defined in (None, np.arange(32) < 31):
        assert fault_of_a_read(lab, in_flight=False, defined=defined) is Fault.UNINITIALISED
    assert fault_of_a_read(lab, in_flight=False, defined=FULL) is None
