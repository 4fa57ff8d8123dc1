"""The recorded casts of a real GPU against our emulator: key chunks here, all 2^32 inputs in `tox -e exhaustive`."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precision as P
from properties import silicon

CASTS, TABLES = list(silicon.casts()), list(silicon.tables())


@pytest.mark.parametrize("name", CASTS)
def test_the_chunks_where_something_happens_are_as_on_the_card(name: str) -> None:
    verdict = silicon.replay(name, silicon.key_chunks(name))
    assert verdict.ok, str(verdict)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASTS)
def test_all_inputs_are_as_on_the_card(name: str) -> None:
    verdict = silicon.replay(name)
    assert len(verdict.chunks) == silicon.CHUNKS
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("name", TABLES)
def test_every_code_is_as_on_the_card(name: str) -> None:
    wrong = silicon.replay_table(name)
    assert wrong.size == 0, [hex(bits) for bits in wrong[:8].tolist()]


def test_the_tables_of_bfloat16_hold_for_the_dtype_itself() -> None:
    import ml_dtypes

    x = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    rows = [row for row in silicon.TABLES if row.source == "bfloat16" and row.recipe is silicon._plain]
    assert len(rows) == 9
    for row in rows:
        codes = P.encode(x, row.format, rounding=row.rounding, policy=row.policy)
        assert np.array_equal(codes, silicon.recording(row.name)), row.name


def test_there_is_a_row_for_every_recording() -> None:
    assert len(CASTS) == len(set(CASTS)) == 39
    assert len(TABLES) == len(set(TABLES)) == 31
    for name in CASTS:
        stored = silicon.recording(name)
        assert stored.shape == (silicon.CHUNKS,)
        assert stored.dtype == np.uint64
    assert set(silicon._recordings()) == {*CASTS, *TABLES}


# --- what would be seen -----------------------------------------------------------------------------------------------


def test_the_digest_is_the_documented_sum() -> None:
    codes = np.random.default_rng(1).integers(0, 1 << 32, silicon.CHUNK, dtype=np.uint32)
    i = np.arange(silicon.CHUNK, dtype=np.uint64)
    z = (i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    m = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    assert int(m[0]) == 0xE220A8397B1DCDAF  # splitmix64's first output from seed 0, which is odd
    expected = int(((codes.astype(np.uint64) + np.uint64(1)) * m).sum(dtype=np.uint64))
    assert silicon.digest(codes) == silicon.digest(codes.reshape(2, -1)) == expected


@pytest.mark.parametrize("name", CASTS)
def test_one_wrong_code_in_a_chunk_is_seen(name: str) -> None:
    def one_off(x: Any, fmt: str, /, *, rounding: str, policy: Any) -> Any:
        codes = P.encode(x, fmt, rounding=rounding, policy=policy)
        codes[12345] ^= 1
        return codes

    verdict = silicon.replay(
        name, [255], encode=one_off
    )  # 1.0 and up: a code's last bit reaches every recorded pattern
    assert verdict.mismatching_chunks == (255,)
    assert "1 of 1 chunks differ" in str(verdict)
    assert "0x3fc00000 to 0x3fffffff" in str(verdict)


# one wrong choice in a row each; a recipe that nothing needs is wrong, too
WRONG_ROWS = [
    ("ptx_cvt_rn_f16_f32", {"rounding": "nearest_away"}),
    ("ptx_cvt_rn_bf16_f32", {"rounding": "toward_zero"}),
    ("ptx_cvt_rz_f16_f32", {"policy": "ptx_satfinite"}),
    ("ptx_cvt_rn_satfinite_e4m3x2_f32", {"policy": "saturate", "format": "float8_e4m3"}),
    ("cuda_fp8_e4m3_nosat", {"policy": "torch_2_11"}),
    ("torch_cuda_to_float8_e4m3fn", {"policy": "torch"}),
    ("torch_cuda_to_float8_e5m2", {"policy": "ptx"}),
    ("cuda_fp4_e2m1_rn", {"policy": P.Policy(missing_nan="zero")}),
    ("cuda_fp6_e3m2_rn", {"policy": P.Policy(subnormals="flush_results")}),
    ("ptx_cvt_rn_bf16_f32", {"policy": P.Policy("infinity", "infinity", "all_ones", subnormals="flush_inputs")}),
    ("cuda_e8m0_rz_satfinite", {"policy": P.Policy(negative="clamp")}),
    ("cuda_e8m0_rp_satfinite", {"policy": P.Policy(zero="nan", negative="magnitude")}),
    ("ptx_cvt_rna_tf32_f32", {"recipe": silicon._tf32}),
    ("torch_cuda_to_int8", {"format": "int8"}),
]
NO_RECIPE = [(row.name, {"recipe": silicon._plain}) for row in silicon.CASTS if row.recipe is not silicon._plain]


@pytest.mark.parametrize(
    ("name", "change"), WRONG_ROWS + NO_RECIPE, ids=lambda part: part if isinstance(part, str) else "-".join(part)
)
def test_key_chunks_show_a_wrong_row(name: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dataclasses.replace(silicon.casts()[name], **change)
    monkeypatch.setattr(silicon, "casts", lambda: {name: wrong})
    assert not silicon.replay(name, silicon.key_chunks(name)).ok


# --- the calls --------------------------------------------------------------------------------------------------------


def test_progress_counts_chunks() -> None:
    seen: list[tuple[int, int]] = []
    verdict = silicon.replay("cuda_fp4_e2m1_rn", [3, 600], progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)]
    assert (verdict.chunks, verdict.ok) == ((3, 600), True)
    assert str(verdict) == "cuda_fp4_e2m1_rn: 2 of 1024 chunks compared, all as on the card"


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no cast is named 'cvt': use one of ptx_cvt_rn_f16_f32"):
        silicon.replay("cvt")
    with pytest.raises(ValueError, match="no table is named 'cuda_fp4_e2m1_rn'"):
        silicon.replay_table("cuda_fp4_e2m1_rn")
    with pytest.raises(ValueError, match="no recording is named"):
        silicon.recording("sfu")
    with pytest.raises(ValueError, match="chunk is 1024; the chunks of a cast are 0 to 1023"):
        silicon.replay("cuda_fp4_e2m1_rn", [1024])
    with pytest.raises(ValueError, match="codes are 3 uint8; a digest is of the 4194304 unsigned codes"):
        silicon.digest(np.zeros(3, np.uint8))


def test_the_page_in_docs_is_what_the_rows_say() -> None:
    page = Path(__file__).parents[1] / "docs" / "silicon.md"
    everything = tuple(range(silicon.CHUNKS))
    assert page.read_text("utf-8") == silicon.document(silicon.Replay(name, everything, (), 0.0) for name in CASTS)
