"""Every entry counts the parameters of the real model; names and ids are found, wrong ones get a hint."""

from __future__ import annotations

import warnings

import pytest

from trainmem.job import JobError
from trainmem.model import FAMILIES
from trainmem.model.catalogue import Entry, entries, find

# Parameters of the models behind measured steps, as counted on the GPU.
MEASURED = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1558m": 1_557_611_200,
    "gpt2drop-124m": 124_439_808,
    "gpt2drop-355m": 354_823_168,
    "llama2-7b": 6_738_415_616,
    "llama3.1-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "phi3-mini": 3_821_079_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "bert-base": 109_483_778,
    "bert-large": 335_143_938,
}

# Parameters that model cards and the Hub's safetensors counts give.
PUBLISHED = {
    "llama2-13b": 13_015_864_320,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "phi3-medium": 13_960_238_080,
    "phi4": 14_659_507_200,
    "phi4-mini": 3_836_021_760,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}


@pytest.mark.torch
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_the_count_is_that_of_the_real_model(entry: Entry) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    auto = AutoModelForCausalLM if entry.task == "causal_lm" else AutoModelForSequenceClassification
    values = {key: value for key, value in entry.config.items() if key != "model_type"}
    config = AutoConfig.for_model(entry.family, **values)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = auto.from_config(config)
    assert entry.architecture().parameter_count == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "parameters"), (MEASURED | PUBLISHED).items())
def test_the_count_is_the_one_measured_or_published(name: str, parameters: int) -> None:
    assert find(name).architecture().parameter_count == parameters


def test_names_are_short_lower_case_and_one_of_a_kind() -> None:
    names = [name.casefold() for e in entries() for name in (e.name, e.hub_id, *e.same) if name]
    assert len(names) == len(set(names))
    for entry in entries():
        assert entry.name == entry.name.lower()
        assert len(entry.name) <= 20
        assert entry.source
        assert entry.family in FAMILIES
        assert entry.architecture().notes == ()


def test_every_family_has_an_entry() -> None:
    assert {entry.family for entry in entries()} == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama3.1-8b", "llama3.1-8b"),
        (" LLaMA3.1-8B ", "llama3.1-8b"),
        ("meta-llama/llama-3.1-8b", "llama3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("Qwen/Qwen2.5-0.5B", "qwen2.5-0.5b"),
        ("mistral-7b-v0.3", "mistral-7b"),
        ("openai-community/gpt2-large", "gpt2drop-774m"),
        ("gpt2-xl", "gpt2drop-1558m"),
    ],
)
def test_found_by_name_or_id_in_any_case(name: str, found: str) -> None:
    assert find(name).name == found


@pytest.mark.parametrize(
    ("name", "hint"),
    [("llama3-8b", "llama3.1-8b"), ("gtp2-774m", "gpt2-774m"), ("someone/qwen3-8b-tuned", "qwen3-8b")],
)
def test_an_unknown_name_gets_the_closest_ones(name: str, hint: str) -> None:
    with pytest.raises(JobError, match=r"^model: ") as error:
        find(name)
    assert hint in str(error.value)
    assert "trainmem models" in str(error.value)


@pytest.mark.parametrize("name", ["", "???", "x" * 10_000, "\n\x00"])
def test_nonsense_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(JobError) as error:
        find(name)
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


def test_plain_gpt2_has_no_dropout_and_says_so() -> None:
    plain, published = find("gpt2-124m"), find("openai-community/gpt2")
    assert set(plain.architecture().dropout.values()) == {0.0}
    assert set(published.architecture().dropout.values()) == {0.1}
    assert plain.note is not None
    assert "gpt2drop-124m" in plain.note
