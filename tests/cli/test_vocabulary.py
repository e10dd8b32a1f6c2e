"""One vocabulary: an option that several commands have is called, explained, read and refused alike in all of them."""

import re

import click
import pytest
from click.testing import CliRunner

from vgg16gpu.cli import EXIT_CODES, cli
from vgg16gpu.cli.common.options import HELP

SPELLINGS = {  # what each takes, and what it refuses with which words
    "--device": (("auto", "cpu", "cuda", "cuda:3"), {"tpu": "'tpu' is not a device: give auto, cuda, cuda:N or cpu"}),
    "--devices": (
        ("all", "cpu:2", "cuda:0,cuda:1"),
        {"tpu": "'tpu' is not a device, nor several: give all, names with commas"},
    ),
    "--precision": (
        ("fp32", "fp16", "bf16", "int8"),
        {"int4": "'int4' is not one of 'fp32', 'fp16', 'bf16', 'int8'."},
    ),
    "--batch": (
        ("1", "65535"),
        {
            "0": "'0' is not a list of positive whole numbers, as in 1,8,32",
            "1.5": "'1.5' is not a list of positive whole numbers, as in 1,8,32",
            "65536": "'65536' images are too many for a run: give at most 65535",
        },
    ),
    "--size": (
        ("224", "224x224"),
        {"big": "'big' is not a size: give pixels (244), or height x width (224x320)", "0": "'0' is not a size: give"},
    ),
    "--outputs": (("y", "relu3_3,features.22"), {"a,,b": "a name is empty"}),
}
ON_MODELS = ("infer", "testbench", "bench", "ladder", "info", "calibrate", "tune")
USERS = {  # which commands have it
    "--device": (*ON_MODELS, "serve", "doctor", "lab run", "lab profile", "lab exercise check"),
    "--devices": ("infer", "serve", "bench", "calibrate"),
    "--precision": ("infer", "serve", "testbench", "bench", "info", "tune"),
    "--batch": ("infer", "serve", "testbench", "bench", "info", "calibrate", "tune", "lab run"),
    "--size": (*ON_MODELS, "serve", "lab run", "lab profile", "model make", "model sample"),
    "--outputs": ("infer", "serve", "testbench", "bench", "info"),
    "--model": (*ON_MODELS, "serve", "lab run", "model weights"),
}
PLACED = (*ON_MODELS[1:], "serve", "model weights")  # MODEL stands without --model, too


def leaves(command=cli, path=()):
    """Every command that does something, by what is written to call it."""
    context = click.Context(command)
    if not isinstance(command, click.Group):
        return {" ".join(path): command}
    found = (leaves(command.get_command(context, name), (*path, name)) for name in command.list_commands(context))
    return {name: leaf for below in found for name, leaf in below.items()}


LEAVES = leaves()


def options(command, *, hidden=False):
    return {
        name: parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.hidden is hidden
        for name in parameter.opts
    }


def value(command, option, given):
    """What a command makes of an option, and nothing else."""
    parameter = options(LEAVES[command])[option]
    raw = [given] if parameter.multiple else given
    return parameter.process_value(click.Context(LEAVES[command]), raw)


def test_those_who_can_use_an_option_have_it_with_the_same_help():
    for option, users in USERS.items():
        assert {name for name, command in LEAVES.items() if option in options(command)} == set(users), option
        for name in users if option in HELP else ():
            assert options(LEAVES[name])[option].help.startswith(HELP[option]), (name, option)


@pytest.mark.parametrize("option", SPELLINGS)
def test_values_are_read_alike(option):
    accepted, _ = SPELLINGS[option]
    for given in accepted:
        single = {flat(value(name, option, given)) for name in USERS[option]}
        assert len(single) == 1, (given, single)


def flat(found):
    """A value as it would be in a list of several: 8 and (8,) are the same, and so are 224 and (224, 224)."""
    while isinstance(found, tuple) and len(set(found)) == 1:
        found = found[0]
    return found


@pytest.mark.parametrize("option", SPELLINGS)
def test_values_are_refused_alike(option):
    _, refused = SPELLINGS[option]
    for given, words in refused.items():
        for name in USERS[option]:
            result = CliRunner().invoke(cli, [*name.split(), option, given])
            assert (result.exit_code, result.stdout) == (2, ""), (name, given)
            assert result.stderr.count("\n") == 1, name
            assert f"Invalid value for '{option}': {words}" in re.sub(r" / '[^']*'", "", result.stderr), name


def test_several_values_stand_with_commas_wherever_several_are_taken():
    for name in ("infer", "info", "bench", "tune"):
        assert value(name, "--batch", "1, 8,8") == (1, 8)
    for name in ("testbench", "calibrate", "lab run"):
        result = CliRunner().invoke(cli, [*name.split(), "--batch", "1,8"])
        assert "'1,8' is several: this command runs one number of images" in result.stderr
    for name in ("bench", "tune"):
        assert value(name, "--precision", "fp16, fp32,fp16") == ("fp16", "fp32")
    assert value("tune", "--size", "224,320x240") == ((224, 224), (320, 240))
    assert value("lab run", "--size", "224,320x320") == (224, 320)


def test_a_model_stands_at_its_place_or_behind_the_option():
    for command in map(LEAVES.__getitem__, PLACED):
        assert any("MODEL" in (argument.metavar or "") for argument in command.params if argument.name != "model")
        assert options(command)["--model"].help.startswith("The same as MODEL")


OLD = {  # older name -> (command, its parameter, the name of today)
    "--batches": ("tune", "batches", "--batch"),
    "--sizes": ("lab run", "sizes", "--size"),
    "--outputs": ("lab run", "outputs", "--output-channels"),
}


@pytest.mark.parametrize("old", OLD)
def test_older_names_are_hidden_and_still_taken(old, monkeypatch):
    name, parameter, new = OLD[old]
    command, seen = LEAVES[name], []
    assert old in options(command, hidden=True)
    assert new in options(command)
    assert old not in CliRunner().invoke(cli, [*name.split(), "--help"]).stdout
    monkeypatch.setattr(options_class(name), lambda **values: seen.append(values[parameter]) or 1 / 0)
    results = [CliRunner().invoke(cli, [*name.split(), option, "3,5"]) for option in (new, old)]
    assert seen[0] == seen[1]
    assert seen[0]
    assert [f"{old} is called {new} now; the old name will go" in result.stderr for result in results] == [False, True]


def options_class(name):
    return {"tune": "vgg16gpu.cli.tune.TuneOptions", "lab run": "vgg16gpu_lab.cli.command.Options"}[name]


def test_exit_codes_are_in_every_help():
    for name in ("", "infer", "lab exercise", "lab exercise check"):
        result = CliRunner().invoke(cli, [*name.split(), "--help"])
        assert result.exit_code == 0
        assert EXIT_CODES in " ".join(result.stdout.split())
