"""Recording a GPU: operands, judging, the file, replay, the command; the kernels themselves where there is a device."""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import precision as P
from precision import tensor_cores
from properties import recorder, silicon
from properties.cli import main
from properties.recorder import casts, multiply_add, nvrtc, operands, products, ptx
from properties.recorder.findings import Finding, Recording
from properties.recorder.nvrtc import Unavailable

HALF = "mma.m16n8k16.f16.f16.f16.f16"
TF32 = "wgmma.m64n8k8.f32.tf32.tf32"
SMALL = [HALF, TF32, "mma.m16n8k4.f32.tf32.tf32.f32", "mma.m16n8k32.satfinite.s32.s8.s8.s32"]


class Emulated:
    """A card that is the emulator, with one bit of one output of `wrong` flipped."""

    device = "cpu"

    def __init__(self, architecture: str = "hopper", wrong: str = "") -> None:
        self.architecture, self.wrong = architecture, wrong

    def environment(self) -> dict[str, str]:
        return {"gpu": "none", "architecture": self.architecture, "torch": "2.11.0"}

    def mma(self, name: str, a: Any, bt: Any, c: Any) -> Any:
        it = ptx.parse(name)
        if name == "mma.m16n8k8.f32.f16.f16.f32":
            raise Unavailable("needs sm_75")
        if name.startswith("mma.m16n8k8.f32.bf16"):
            return c  # of an architecture without a model
        k = it.k * it.steps
        d = tensor_cores.mma(a[..., :k], bt[..., :k].swapaxes(-1, -2), c, instruction=name, arch="hopper")
        if name == self.wrong:
            signed = d.view(torch.int16 if d.element_size() == 2 else torch.int32)
            signed[4, 33, 5] ^= 1  # of class "close", and not among the rows that are kept
        return d

    def cast(self, name: str, first: int, count: int) -> Any:
        row = (silicon.casts() | silicon.tables())[name]
        bits = np.arange(first, first + count, dtype=np.uint32 if row.source == "float32" else np.uint16)
        codes = row.codes(bits.astype(np.uint8) if count == 256 else bits).astype(np.int64)
        if name == self.wrong:
            codes[0x3C01] ^= 2
        return torch.from_numpy(codes)

    def multiply(self, product: str, a: Any, bt: Any) -> Any:
        it = products.PRODUCTS[product]
        model = tensor_cores.get_accumulator(f"hopper.{it.accumulator}")
        values = model.matmul(P.decode(a, it.a), P.decode(bt, it.b).swapaxes(-1, -2))
        codes = P.encode(values, it.out, policy="ieee")
        if product == self.wrong:
            codes.view(torch.int16)[3, 2] ^= 1
        return codes


def record(card: Any, instructions: list[str], **more: Any) -> Recording:
    return recorder.record(card, instructions=instructions, outputs=1, cast=False, product=False, **more)


@pytest.fixture(scope="module")
def sound() -> Recording:
    return record(Emulated(), SMALL)


@pytest.fixture(scope="module")
def broken() -> Recording:
    return record(Emulated(wrong=HALF), SMALL)


# --- instructions by name ---------------------------------------------------------------------------------------------


def test_a_name_says_everything():
    it = ptx.parse("mma.chain8.m16n8k16.f32.f16.f16.f32")
    assert (it.rows, it.k, it.steps, it.group) == (16, 16, 8, False)
    assert it.ptx == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    it = ptx.parse("wgmma.smemA.m64n8k32.f32.e4m3.e5m2")
    assert (it.rows, it.shared, it.group) == (64, True, True)
    assert it.ptx == "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2"
    assert ptx.parse(SMALL[3]).ptx == "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32"
    assert ptx.parse("wgmma.m64n8k32.s32.s8.s8.satfinite").ptx.endswith(".s32.s8.s8.satfinite")


@pytest.mark.parametrize("name", ["mma.m64n8k16.f32.f16.f16.f32", "wgmma.m16n8k16.f32.f16.f16", "hmma", ""])
def test_another_name_is_refused(name):
    with pytest.raises(ValueError, match=r"no matrix instruction is named .*: use one of mma\.m16n8k16"):
        ptx.parse(name)


def test_every_recorded_instruction_is_modelled_for_hopper():
    assert len(ptx.INSTRUCTIONS) == len(set(ptx.INSTRUCTIONS)) == 58
    for name in ptx.INSTRUCTIONS:
        row, it = tensor_cores.get_instruction(name, "hopper"), ptx.parse(name)
        assert (row.k, row.saturates) == (it.k, it.satfinite), name
        formats = [ptx.FORMATS[kind] for kind in (it.a, it.b, it.d)]
        assert [row.a.name, row.b.name, row.accumulator.name] == formats, name


@pytest.mark.parametrize(
    ("name", "capability", "cuda", "text"),
    [
        ("wgmma.m64n8k16.f32.f16.f16", (9, 0), (12, 0), ""),
        ("wgmma.m64n8k16.f32.f16.f16", (10, 0), (13, 0), "needs sm_90a"),
        ("mma.m16n8k8.f32.f16.f16.f32", (7, 5), (12, 4), ""),
        ("mma.m16n8k8.f32.bf16.bf16.f32", (7, 5), (12, 4), "needs sm_80"),
        ("mma.m16n8k32.f32.e4m3.e4m3.f32", (8, 0), (13, 0), "needs sm_89"),
        ("mma.m16n8k32.f32.e4m3.e4m3.f32", (8, 9), (12, 3), "needs PTX ISA 8.4, which CUDA 12.4 brought"),
        ("mma.m16n8k32.f16.e4m3.e4m3.f16", (9, 0), (12, 4), "needs PTX ISA 8.7, which CUDA 12.8 brought"),
        ("mma.m16n8k16.f32.e4m3.e4m3.f32", (12, 0), (13, 0), ""),
    ],
)
def test_what_is_missing_is_said(name, capability, cuda, text):
    assert ptx.parse(name).missing(capability, cuda) == text


@pytest.mark.parametrize("name", ptx.INSTRUCTIONS)
def test_a_kernel_numbers_its_operands(name):
    it = ptx.parse(name)
    call = next(line for line in it.source().splitlines() if line.startswith("#define MULTIPLY_ADD"))
    statement, outputs, inputs = (call.split(" : ")[0], *call.split(" : ")[1:3])
    count = outputs.count('"+r"') + inputs.count('"r"') + inputs.count('"l"')
    used = {int(number) for number in re.findall(r"%(\d+)", statement)}
    assert used == set(range(count))
    words = it.k * {"f16": 16, "bf16": 16, "tf32": 32}.get(it.a, 8) // 32
    assert count == (2 if it.d == "f16" else 4) + (0 if it.shared else words // 2) + (
        1 + it.shared if it.group else words // 4
    )


def test_a_card_that_is_no_card_is_one_line():
    if torch.version.cuda is None:
        with pytest.raises(Unavailable, match=r"^torch .* is no CUDA build: install one .*$"):
            nvrtc.compiler()
    if not torch.cuda.is_available():
        with pytest.raises(Unavailable, match=r"^no CUDA device: torch .* sees none; it takes an NVIDIA GPU.*$"):
            nvrtc.find()


@pytest.mark.parametrize(
    ("capability", "name"),
    [((7, 5), "turing"), ((8, 6), "ampere"), ((8, 9), "ada"), ((9, 0), "hopper"), ((10, 3), "blackwell")],
)
def test_capabilities_have_the_names_of_the_models(capability, name):
    assert nvrtc.Gpu("", capability, "").architecture == name
    assert name in tensor_cores.ARCHITECTURES


def test_a_capability_of_the_future_has_its_number():
    assert nvrtc.Gpu("", (99, 1), "").architecture == "sm_991"


# --- operands ---------------------------------------------------------------------------------------------------------


def drawn(d: str, a: str, b: str, k: int, seed: int = 0) -> Any:
    return operands.draw(d, a, b, k=k, m=64, n=8, per_class=2, seed=seed, device="cpu")


@pytest.mark.parametrize("key", ptx.OPERAND_SETS)
def test_operands_are_codes_of_every_class_and_the_seed_s(key):
    d, a, b, k = key
    first, again, other = drawn(*key), drawn(*key), drawn(*key, seed=1)
    classes = operands.INTEGERS if d == "s32" else operands.FLOATS
    assert first[3] == list(classes) * 2
    for x, y, z, shape in zip(first[:3], again[:3], other[:3], ((64, k), (8, k), (64, 8)), strict=True):
        assert x.shape == (2 * len(classes), *shape)
        assert np.array_equal(x.numpy(), y.numpy())
        assert not np.array_equal(x.numpy(), z.numpy())
    bits = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32}
    assert [8 * x.element_size() for x in first[:3]] == [bits.get(kind, 8) for kind in (a, b, d)]


def values_of(key: tuple[str, str, str, int], name: str) -> list[Any]:
    a, bt, c, classes = drawn(*key)
    where = [i for i, it in enumerate(classes) if it == name]
    kinds = (operands.PATTERNS[kind] for kind in (key[1], key[2], key[0]))
    return [P.decode(x.numpy()[where], kind).astype(np.float64) for x, kind in zip((a, bt, c), kinds, strict=True)]


@pytest.mark.parametrize("key", [("f32", "f16", "f16", 16), ("f16", "e5m2", "e4m3", 32), ("f32", "bf16", "bf16", 16)])
def test_classes_hold_what_their_names_say(key):
    a, bt, c = values_of(key, "minus zeros")
    products_of = a[:, ::2, None, :] * bt[:, None, :, :]
    assert (products_of == 0).all()
    assert np.signbit(products_of).all()
    assert np.signbit(c[:, ::2]).all()
    a, bt, c = values_of(key, "integers")
    assert all((x == np.rint(x)).all() for x in (a, bt, c))
    a, bt, c = values_of(key, "finite")
    assert all(np.isfinite(x).all() for x in (a, bt, c))
    a, bt, c = values_of(key, "addend cancels")
    exact = -a[:, :, None, 0] * bt[:, None, :, 0]
    assert np.array_equal(c, P.round_to(exact, operands.PATTERNS[key[0]]))
    c = values_of(key, "specials")[2]
    assert np.isnan(c).any()
    assert np.isinf(c).any()
    assert 0.8 < np.isfinite(c).mean() < 1
    a, bt, c = values_of(key, "cancellation")
    assert np.array_equal(np.abs(a[..., ::2]), np.abs(a[..., 1::2]))
    assert (bt[..., ::2] == -bt[..., 1::2]).mean() > 0.7
    largest = P.get_format(operands.PATTERNS[key[0]]).max
    assert np.abs(values_of(key, "overflow")[2]).max() > largest / 2


def test_low_bits_of_tf32_words_are_random_in_every_other_element():
    a, _bt, _c, classes = drawn("f32", "tf32", "tf32", 8)
    low = a.numpy() & 0x1FFF
    assert (low[: len(classes) // 2] == 0).all()
    assert (low[len(classes) // 2 :] != 0).mean() > 0.5


# --- judging, the file, judging again ---------------------------------------------------------------------------------


def test_a_sound_card_is_found_sound(sound):
    assert sound.ok
    assert {f.name: (f.outputs, f.mismatches) for f in sound.findings} == {
        HALF: (18 * 2 * 512, 0),
        TF32: (18 * 2 * 512, 0),
        SMALL[2]: (18 * 2 * 512, 0),
        SMALL[3]: (4 * 2 * 512, 0),
    }
    assert sound.text().endswith("4 judged, 59,392 outputs: all as the emulator has them")


def test_a_recording_comes_back_from_its_file(sound, tmp_path):
    sound.save(tmp_path / "card.npz")
    back = Recording.load(tmp_path / "card.npz")
    assert back.environment == sound.environment
    assert back.findings == sound.findings
    assert set(back.arrays) == set(sound.arrays)
    assert all(
        np.array_equal(back.arrays[name], x) and back.arrays[name].dtype == x.dtype for name, x in sound.arrays.items()
    )
    assert json.loads((tmp_path / "card.json").read_text()) == sound.as_dict()
    again = recorder.replay(back)
    assert again.ok
    assert [f.outputs for f in again.findings] == [18 * 2 * 128] * 3 + [4 * 2 * 128]
    assert again.findings[0].note == "kept of 18,432, recorded with 0 mismatches"


def test_one_wrong_bit_is_found_and_decoded(broken):
    (found,) = [f for f in broken.findings if not f.ok]
    assert (found.name, found.mismatches) == (HALF, 1)
    first = found.first
    assert first["where"] == "of class close"
    bits = {name: [int(x, 16) for x in first[name]["bits"]] for name in ("a", "b", "c", "got", "expected")}
    assert len(bits["a"]) == len(bits["b"]) == 16
    assert bits["got"][0] ^ bits["expected"][0] == 1
    # The shown operands give the value that is called right: these are close enough for an exact sum to be rounded once.
    a, b, c = (P.decode(np.array(bits[name], np.uint16), "float16") for name in ("a", "b", "c"))
    exact = sum((Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)), Fraction(float(c[0])))
    assert bits["expected"] == [int(P.exact.round(exact, "float16"))]
    text = broken.text()
    assert f"{HALF}: 1 of 18,432 outputs differ, the first of class close\n  a         0x" in text
    assert text.endswith("1 of 4 differ: 1 of 59,392 outputs")


def test_replay_finds_a_wrong_output_that_was_kept(broken, tmp_path):
    broken.save(tmp_path / "card.npz")
    again = recorder.replay(Recording.load(tmp_path / "card.npz"))
    (found,) = [f for f in again.findings if not f.ok]
    assert (found.name, found.mismatches) == (HALF, 1)
    first = next(f for f in broken.findings if not f.ok).first
    assert {k: v for k, v in found.first.items() if k != "where"} == {k: v for k, v in first.items() if k != "where"}


@pytest.mark.parametrize("name", [HALF, TF32])
def test_replay_finds_a_changed_bit(sound, name):
    arrays = dict(sound.arrays)
    d = arrays[f"mma/{name}/d"].copy()
    d[7, 3, 1] ^= 4
    again = recorder.replay(Recording(sound.environment, sound.findings, arrays | {f"mma/{name}/d": d}))
    (found,) = [f for f in again.findings if not f.ok]
    assert (found.name, found.mismatches) == (name, 1)
    assert found.first["got"]["bits"] == [f"{int(d[7, 3, 1]):#0{2 + 2 * d.itemsize}x}"]
    assert found.first["where"] == f"of class {list(operands.FLOATS)[7]}"


def test_what_is_missing_or_unknown_is_a_note_and_no_failure():
    names = ["mma.m16n8k8.f32.f16.f16.f32", "mma.m16n8k16.f32.f16.f16.f32"]
    found = record(Emulated(), names)
    assert found.ok
    assert str(found.findings[1]) == "mma.m16n8k8.f32.f16.f16.f32  not recorded: needs sm_75"
    strange = record(Emulated("sm_991"), ["mma.m16n8k8.f32.bf16.bf16.f32"])
    (finding,) = strange.findings
    assert (finding.mismatches, finding.note) == (None, "not judged: there is no model of it for sm_991")
    assert strange.arrays["mma/mma.m16n8k8.f32.bf16.bf16.f32/d"].shape == (36, 16, 8)
    assert strange.text().endswith("nothing was judged")
    assert recorder.replay(found).findings[1] == found.findings[1]
    assert recorder.replay(strange).findings[0].note == finding.note


def test_what_is_left_out_is_said(monkeypatch):
    monkeypatch.setattr(casts, "names", lambda: ["decode_ptx_cvt_rn_f16x2_e5m2x2"])
    found = recorder.record(Emulated("blackwell"), instructions=[HALF], outputs=1, product=False)
    assert [(f.name, f.mismatches) for f in found.findings][1:3] == [
        ("tcgen05.mma", None),
        ("decode_ptx_cvt_rn_f16x2_e5m2x2", 0),
    ]
    assert str(found.findings[1]).startswith(
        "tcgen05.mma  not recorded: it takes a kernel that allocates tensor memory"
    )
    assert str(found.findings[3]).startswith(
        "69 more conversions  not recorded: they are functions of cuda_fp8.h and other"
    )


def test_a_model_from_the_literature_is_said_to_be_one():
    (found,) = record(Emulated("ada"), ["mma.m16n8k16.f16.e5m2.e4m3.f16"]).findings
    assert found.note == "the model is from: Xie et al."


def test_more_outputs_take_more_draws():
    told: list[tuple[int, int, str]] = []
    found = recorder.record(
        Emulated(),
        instructions=[SMALL[3]],
        outputs=9000,
        cast=False,
        product=False,
        progress=lambda *now: told.append(now),
    )
    assert found.findings[0].outputs == 3 * 4096
    assert [now[0] for now in told] == [0, 33, 66, 100]
    assert {now[1:] for now in told} == {(100, SMALL[3])}


def test_a_chain_is_recorded_as_one():
    (found,) = record(Emulated(), ["wgmma.chain8.m64n8k16.f32.f16.f16"]).findings
    assert (found.mismatches, found.outputs) == (0, 18432)


def test_patterns_choose_instructions():
    assert multiply_add.choose(None) == list(ptx.INSTRUCTIONS)
    assert multiply_add.choose(["wgmma*s8*", HALF]) == [
        HALF,
        *(n for n in ptx.INSTRUCTIONS if n.startswith("wgmma.m64n8k32.s32")),
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"instructions": ["hmma*"]}, r"no instruction matches 'hmma\*': there are mma\.m16n8k16\.f32"),
        ({"outputs": 0}, "outputs is 0; each instruction gives at least 1"),
        ({"seed": -1}, "seed is -1; it is 0 to 65535"),
    ],
)
def test_a_wrong_request_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        recorder.record(Emulated(), **options)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"x" * 100])
def test_another_file_is_no_recording(content, tmp_path):
    path = tmp_path / "some.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is no recording: give an \.npz file that halfulp silicon wrote"):
        Recording.load(path)
    np.savez(path, a=np.arange(3))
    with pytest.raises(ValueError, match="is no recording"):
        Recording.load(path)
    np.save(tmp_path / "some.npy", np.arange(3))
    with pytest.raises(ValueError, match="is no recording"):
        Recording.load(tmp_path / "some.npy")


# --- casts ------------------------------------------------------------------------------------------------------------


def test_digests_are_those_of_the_recordings():
    row = silicon.casts()["torch_cuda_to_float8_e5m2"]
    chunk = 259  # overflow
    codes = row.codes(np.arange(chunk * silicon.CHUNK, (chunk + 1) * silicon.CHUNK, dtype=np.uint32))
    found = casts.digests(torch.from_numpy(codes.astype(np.int64))[None])
    assert found == [silicon.digest(codes)] == [int(silicon.recording(row.name)[chunk])]


@pytest.mark.parametrize("wrong", [False, True])
def test_a_cast_is_judged_by_digest(wrong, monkeypatch):
    name = "ptx_cvt_rz_bf16_f32"
    monkeypatch.setattr(silicon, "CHUNKS", 4)
    recorded = silicon.recording(name)[:4]
    monkeypatch.setattr(silicon, "recording", lambda name: recorded)
    arrays: dict[str, Any] = {}
    found = casts.record(Emulated(wrong=name if wrong else ""), arrays, name, "2.11.0")
    again = casts.replay(arrays, found, "2.11.0")
    if not wrong:
        assert (found.outputs, found.mismatches, found.first, again.mismatches) == (1 << 32, 0, None, 0)
        return
    assert (found.mismatches, again.mismatches) == (1, 1)
    assert found.first["x"]["bits"] == ["0x00003c01"]
    assert (found.first["got"]["bits"], found.first["expected"]["bits"]) == (["0x0002"], ["0x0000"])
    assert again.first == found.first


@pytest.mark.parametrize("wrong", [False, True])
def test_a_conversion_from_a_narrow_format_is_judged_code_by_code(wrong):
    name = "ptx_cvt_rn_satfinite_e4m3x2_f16x2_hi"
    arrays: dict[str, Any] = {}
    found = casts.record(Emulated(wrong=name if wrong else ""), arrays, name, "2.11.0")
    assert (found.outputs, found.mismatches) == (65536, int(wrong))
    assert casts.replay(arrays, found, "2.11.0") == found
    if wrong:
        assert found.first["x"] == {"bits": ["0x3c01"], "values": ["1.0009765625"]}
        assert found.first["expected"] == {"bits": ["0x38"], "values": ["1"]}


def test_casts_that_torch_has_changed_are_judged_by_its_policy():
    changed = {
        name: row.policy for name in casts.names() for row, same in [casts._row(name, "2.13.0+cu130")] if not same
    }
    assert changed == {"torch_cuda_to_float8_e4m3fn": "torch"}
    assert all(casts._row(name, "2.11.0+cu130")[1] for name in casts.names())


def test_the_emulator_s_digests_are_the_card_s(monkeypatch):
    row = silicon.casts()["torch_cuda_to_float8_e4m3fn"]
    monkeypatch.setattr(silicon, "CHUNKS", 2)
    assert list(casts._emulated(row, "cpu")) == [int(x) for x in silicon.recording(row.name)[:2]]


def test_an_instruction_of_another_gpu_is_said_to_be_one():
    cast = ptx.CASTS["cuda_fp4_e2m1_rn"]
    assert cast.missing((9, 0)) == "needs sm_100a or sm_120a"
    assert ptx.CASTS["ptx_cvt_rn_tf32_f32"].missing((8, 9)) == "needs sm_90"
    assert ptx.CASTS["ptx_cvt_rn_tf32_f32"].missing((9, 0)) == ""


# --- whole products ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["", "float16 -> float16"])
def test_products_are_judged_by_the_library_s_model(wrong, monkeypatch):
    for name, value in {"SIZE": 24, "BLOCK": 16, "LENGTHS": (64, 256), "KEPT": (16, 8, 256)}.items():
        monkeypatch.setattr(products, name, value)
    arrays: dict[str, Any] = {}
    found = [products.record(Emulated(wrong=wrong), arrays, name, 0) for name in products.PRODUCTS]
    assert {f.outputs for f in found} == {4 * 256}
    assert {f.name: f.mismatches for f in found if f.mismatches} == ({wrong: 4} if wrong else {})
    again = [products.replay(arrays, f, "hopper") for f in found]
    assert {f.name: (f.outputs, f.mismatches) for f in again if f.mismatches} == ({wrong: (256, 2)} if wrong else {})
    if wrong:
        first = next(f for f in again if f.mismatches).first
        assert first["where"] == "of normal operands, K = 256, row 3, column 2"
        assert int(first["got"]["bits"][0], 16) ^ int(first["expected"]["bits"][0], 16) == 1
    unknown = products.record(Emulated("ampere"), {}, "bfloat16 -> float32", 0)
    assert (unknown.mismatches, unknown.note) == (None, "not judged: there is no model of it for ampere")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_replays_without_a_gpu(sound, broken, tmp_path, capsys):
    sound.save(tmp_path / "sound.npz")
    broken.save(tmp_path / "broken.npz")
    assert main(["silicon", "--replay", str(tmp_path / "sound.npz")]) == 0
    shown = capsys.readouterr().out
    assert "all as the emulator has them" in shown
    assert [line.split()[0] for line in shown.splitlines()[1:5]] == SMALL
    assert main(["silicon", "--replay", str(tmp_path / "broken.npz")]) == 1
    assert f"{HALF}: 1 of" in capsys.readouterr().out
    assert main(["silicon", "--json", "--replay", str(tmp_path / "broken.npz")]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [f["mismatches"] for f in document["findings"]] == [1, 0, 0, 0]


def test_the_command_records(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recorder, "find", lambda: None)
    monkeypatch.setattr(recorder, "ThisGpu", lambda gpu: Emulated())
    options = ["--instructions", f"{HALF},{TF32}", "--outputs", "1e4", "--no-casts", "--no-products", "--seed", "3"]
    assert main(["silicon", *options]) == 0
    shown = capsys.readouterr().out
    assert "written: silicon-none.npz and silicon-none.json; halfulp silicon --replay silicon-none.npz" in shown
    assert Recording.load(tmp_path / "silicon-none.npz").environment["seed"] == "3"
    assert main(["silicon", *options, "--out", "other.npz", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["findings"][0]["name"], document["written"]) == (HALF, "other.npz")
    assert (tmp_path / "other.npz").exists()
    monkeypatch.setattr(recorder, "ThisGpu", lambda gpu: Emulated(wrong=TF32))
    assert main(["silicon", *options]) == 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--outputs many", "--outputs is 'many'; it is a whole number, as in 1000000 or 1e9"),
        ("--outputs inf", "--outputs is 'inf'; it is a whole number"),
        ("--replay a.npz --out b.npz", "--replay judges what a recording holds: leave out --out and --instructions"),
        ("--replay missing.npz", "missing.npz: No such file or directory"),
        ("--no-mma --instructions wgmma*", "--no-mma leaves out what --instructions names (wgmma*)"),
    ],
)
def test_a_wrong_command_is_one_line(line, text, capsys):
    assert main(["silicon", *line.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("halfulp silicon: " + text)
    assert said.count("\n") == 1


def test_without_a_gpu_the_command_says_what_it_takes(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert main(["silicon"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("halfulp silicon: no CUDA device: torch ")
    assert said.endswith("sees none; it takes an NVIDIA GPU, its driver and a CUDA build of torch\n")


RECORDED = Path(__file__).parent / "data" / "silicon-nvidia-h200.npz"


@pytest.mark.skipif(not RECORDED.exists(), reason="the recording of an H200 is not here")
def test_a_recording_of_an_h200_is_judged_again():
    recording = Recording.load(RECORDED)
    assert recording.environment["architecture"] == "hopper"
    assert {f.name for f in recording.findings if f.kind == "mma" and not f.mismatches} == set(ptx.INSTRUCTIONS)
    assert all(f.outputs >= 10**9 // ptx.parse(f.name).steps for f in recording.findings if f.kind == "mma")
    again = recorder.replay(recording)
    assert again.ok, again.text()
    assert [f.name for f in again.findings] == [f.name for f in recording.findings]


# --- on a device ------------------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_this_gpu_does_what_the_emulator_says(tmp_path):
    card = recorder.ThisGpu(recorder.find())
    found = recorder.record(card, outputs=1 << 17, cast=False)
    assert found.ok, found.text()
    found.save(tmp_path / "this.npz")
    assert recorder.replay(Recording.load(tmp_path / "this.npz")).ok


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["torch_cuda_to_float16", "ptx_cvt_rn_f16_f32", "ptx_cvt_rzi_s32_f32"])
def test_casts_of_this_gpu_are_as_recorded(name):
    card = recorder.ThisGpu(recorder.find())
    found = casts.record(card, {}, name, torch.__version__)
    assert found.ok, found.decoded()


@pytest.mark.cuda
def test_any_number_of_tiles_is_multiplied():
    gpu = recorder.find()
    for name in ptx.INSTRUCTIONS:
        it = ptx.parse(name)
        key = next(key for key, names in ptx.OPERAND_SETS.items() if name in names)
        a, bt, c, _ = operands.draw(*key[:3], k=key[3], m=192, n=24, per_class=1, seed=5, device="cuda")
        try:
            d = ptx.mma(gpu, name, a, bt, c)
        except Unavailable:
            continue
        k = it.k * it.steps
        right = tensor_cores.mma(a[..., :k], bt[..., :k].mT, c, instruction=name, arch=gpu.architecture)
        assert torch.equal(d.view(torch.uint8), right.contiguous().view(torch.uint8)), name


@pytest.mark.cuda
def test_wrong_shapes_and_sources_are_refused():
    gpu = recorder.find()
    a, bt, c, _ = operands.draw("f32", "f16", "f16", k=8, m=64, n=8, per_class=1, seed=0, device="cuda")
    with pytest.raises(ValueError, match=r"a, bt, c are .*; mma.m16n8k16.f32.f16.f16.f32 takes \(batch, 64 i, 16\)"):
        ptx.mma(gpu, "mma.m16n8k16.f32.f16.f16.f32", a, bt, c)
    with pytest.raises(Unavailable, match=r"NVRTC \d+\.\d+ refuses: .*error"):
        gpu.compile("nonsense")


def test_a_finding_without_a_first_mismatch_has_one_line():
    assert Finding("cast", "x", 4, 1).decoded() == "x: 1 of 4 outputs differ, the first "
