"""A kernel file's contract is read strictly, or refused with the reason."""

import pytest
from samples import CONTRACT, LAUNCH, cuda_file

from l2tune.errors import HeaderError
from l2tune.spec import header
from l2tune.spec.kernel import KernelSource

TMA = '[tma.a]\nbox = [64, "TILE"]\nswizzle = 128\n[tune]\nTILE = 64\n'


def test_a_contract_reads_as_it_is_written():
    backend, found = header.parse(cuda_file(CONTRACT + 'requires = ["k % 8 == 0"]\n', TMA + LAUNCH))
    assert backend == "cuda"
    assert found.id == "test/naive"
    assert found.launch[0].grid[0]({"m": 100, "n": 10, "batch": 1}) == 4
    assert found.requires[0]({"k": 9}) == 0
    assert found.tma["a"].box[1]({"TILE": 64}) == 64
    assert found.tune == {"TILE": 64}


def test_a_triton_contract_is_read_from_its_comment_block():
    lines = "".join(f"# {line}\n" for line in (CONTRACT + LAUNCH).splitlines())
    backend, found = header.parse(f"# /// l2tune\n{lines}# ///\nimport triton\n")
    assert (backend, found.id) == ("triton", "test/naive")


@pytest.mark.parametrize(
    ("contract", "launch", "said"),
    [
        (CONTRACT + "threads = 3\n", LAUNCH, "unknown key 'threads'"),
        (CONTRACT, LAUNCH + "threads = 3\n", "unknown key 'launch.0.threads'"),
        (CONTRACT, "", "launch"),
        ("", LAUNCH, "arch"),
        (CONTRACT + "id = 'twice'\n", LAUNCH, "not TOML"),
        (CONTRACT + "= 1\n", LAUNCH, "not TOML"),
        (CONTRACT + f"[tune]\nA = [{'9' * 5000}]\n", LAUNCH, "not TOML"),
        (CONTRACT.replace("sm_80", "sm_90"), LAUNCH, "arch"),
        (CONTRACT.replace("f16", "f64"), LAUNCH, "dtype"),
        (CONTRACT + "acc = 'f64'\n", LAUNCH, "acc"),
        (CONTRACT + 'requires = ["q == 1"]\n', LAUNCH, "unknown names ['q']"),
        (CONTRACT + "requires = [\"__import__('os')\"]\n", LAUNCH, "calls __import__"),
        (CONTRACT + 'requires = ["m.real"]\n', LAUNCH, "Attribute"),
        (CONTRACT + 'requires = ["m ** 9"]\n', LAUNCH, "BinOp"),
        (CONTRACT + "requires = [1.5]\n", LAUNCH, "needed an integer or an expression"),
        (CONTRACT + "requires = [true]\n", LAUNCH, "needed an integer or an expression"),
        (CONTRACT + f'requires = ["{"m+" * 300}m"]\n', LAUNCH, "at most 500"),
        (CONTRACT + 'flags = ["-I/"]\n', LAUNCH, "flag '-I/' is not allowed"),
        (CONTRACT + 'flags = ["-O3 -I/"]\n', LAUNCH, "is not allowed"),
        (CONTRACT + "[tune]\nm = [1]\n", LAUNCH, "names of the problem"),
        (CONTRACT + "[tune]\nL2_A_T = 1\n", LAUNCH, "without the prefix L2_"),
        (CONTRACT + '[tune]\n"A B" = 1\n', LAUNCH, "must be an identifier"),
        (CONTRACT, LAUNCH.replace('"c"', '"stdout"'), "unknown argument 'stdout'"),
        (CONTRACT + TMA, LAUNCH.replace('"c"', '"tma.b"'), "unknown argument 'tma.b'"),
        (CONTRACT + "[tma.x]\noperand='a'\nbox=[1,1]\n", LAUNCH.replace('"c"', '"x"'), "'x'"),
        (CONTRACT + "[tma.x]\nbox=[1,1]\n", LAUNCH, "names no operand"),
        (CONTRACT + "[tma.a]\nbox=[1,1]\nswizzle=96\n", LAUNCH, "tma.a.swizzle"),
        (CONTRACT, LAUNCH.replace('"gemm"', '"gemm<1>"'), "launch.0.kernel"),
    ],
)
def test_a_malformed_contract_is_refused_and_the_fault_is_named(contract, launch, said):
    with pytest.raises(HeaderError) as caught:
        header.parse(cuda_file(contract, launch))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "int x;\n" + cuda_file(), "/*---l2tune\nid = 1\n"])
def test_a_file_that_does_not_start_with_a_contract_is_refused(text):
    with pytest.raises(HeaderError, match="found no contract"):
        header.parse(text)


@pytest.mark.parametrize(
    "pick", [{"arch": "sm_70"}, {"layout": "xy"}, {"dtype": "float32"}, {"text": "no contract"}]
)
def test_a_pick_that_the_contract_lacks_is_a_header_error_and_not_pydantics(pick):
    with pytest.raises(HeaderError):
        KernelSource(**{"text": cuda_file(), "arch": "sm_80", **pick})


def test_the_tables_of_docs_name_every_key_of_the_contract():
    from pathlib import Path

    documented = Path(__file__, "../../../docs/kernel-format.md").resolve().read_text()
    table = documented.split("## Operands")[0]
    for name in {*header.Header.model_fields, *header.Launch.model_fields} - {"where", "tma"}:
        assert f"`{name}`" in table or f"`[{name}]`" in table or f"`[[{name}]]`" in table, name


EXPECT = {
    "a GPU": 'stage = "sandbox"\ncheck = "smoke"\nfinding = "wrong_value"\n',
    "the emulator": 'emulator = "shared_race"\n',
    "nobody": "",
    "a GPU in part": 'stage = "sandbox"\nfinding = "wrong_value"\nemulator = "shared_race"\n',
}


def _expecting(who):
    return cuda_file(CONTRACT, LAUNCH + "[expect]\nshape = [64, 64, 8]\n" + EXPECT[who])


@pytest.mark.parametrize("who", ["a GPU", "the emulator"])
def test_an_exploit_says_who_refuses_it(who):
    expect = header.parse(_expecting(who))[1].expect
    assert expect.shape == (64, 64, 8)
    assert bool(expect.finding) is (who == "a GPU")


@pytest.mark.parametrize(
    ("who", "said"), [("nobody", "nobody refuses it"), ("a GPU in part", "belong together")]
)
def test_an_exploit_that_nobody_refuses_or_only_in_part_is_no_contract(who, said):
    with pytest.raises(HeaderError, match=said):
        header.parse(_expecting(who))
