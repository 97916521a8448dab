"""What would run code is refused by its name, before anything has happened."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotswap.wire import Budget, PayloadRefused, decode
from hotswap.wire.reader import read
from tests.unit.wire.audited import nothing_happens
from tests.unit.wire.senders import PROTOCOLS

ROOT = Path(__file__).parents[3]

GADGETS = {
    "builtins.eval": ("1",),
    "builtins.exec": ("1",),
    "builtins.compile": ("1", "x", "eval"),
    "builtins.__import__": ("os",),
    "builtins.getattr": (1, "real"),
    "builtins.setattr": (1, "a", 2),
    "builtins.open": ("/etc/passwd",),
    "builtins.globals": (),
    "builtins.vars": (),
    "builtins.map": (1, 2),
    "builtins.type": ("a",),
    "builtins.breakpoint": (),
    "os.system": ("true",),
    "posix.system": ("true",),
    "subprocess.Popen": (["true"],),
    "subprocess.run": (["true"],),
    "operator.attrgetter": ("a",),
    "operator.methodcaller": ("a",),
    "functools.partial": (1,),
    "pickletools.sys": (),
    "codecs.decode": ("a", "rot13"),
    "types.CodeType": (),
    "types.FunctionType": (),
    "importlib.import_module": ("os",),
    "pickle.loads": (b"N.",),
    "marshal.loads": (b"N",),
    "copyreg.add_extension": ("os", "system", 1),
    "torch.load": ("x",),
    "torch.jit.load": ("x",),
    "torch.hub.load": ("x", "y"),
    "torch.hub._load_local": ("x", "y"),
    "torch.utils.cpp_extension.load": ("x", "y"),
    "torch.storage._load_from_bytes": (b"x",),
    "torch._utils._rebuild_tensor_v2": (1,),
    "torch.multiprocessing.reductions.rebuild_storage_fd": (1, 2, 3),
    "torch.multiprocessing.reductions.rebuild_event": (1, 2),
    "multiprocessing.resource_sharer.DupFd": (1,),
    "numpy.testing.runstring": ("1", "x"),
    "numpy.core.multiarray._reconstruct": (1,),
    "sglang.srt.utils.common.dynamic_import": ("os.system",),
    "sglang.srt.utils.MultiprocessingSerializer.deserialize": (b"N.",),
    "sglang.srt.weight_sync.tensor_bucket.os": (),
    "torch.os": (),
    "builtins.object.__reduce_ex__": (1,),
    "weakref.ref": (1,),
    "collections.OrderedDict": (),
}  # fmt: skip


def a_call(dotted: str, arguments: tuple[object, ...], protocol: int) -> bytes:
    """What pickle writes for an object that asks to be made by that call."""
    module, _, name = dotted.rpartition(".")
    rest = pickle.dumps(arguments, protocol)
    start = 2 if protocol >= 2 else 0
    if protocol == 4:
        head = b"\x80\x04" + b"".join(
            b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, name)
        )
        return head + b"\x93" + rest[start:-1] + b"R."
    return rest[:start] + b"c" + f"{module}\n{name}\n".encode() + rest[start:-1] + b"R."


def refusal(payload: bytes, **how: Any) -> str:
    with nothing_happens(), pytest.raises(PayloadRefused) as caught:
        decode(payload, **how)
    return str(caught.value)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("name", GADGETS)
def test_a_foreign_name_is_refused_and_named(name: str, protocol: int) -> None:
    assert f"the name '{name}' stands in no tensor" in refusal(
        a_call(name, GADGETS[name], protocol)
    )


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("torch.multiprocessing.reductions.rebuild_storage_fd", "file_system"),
        ("torch._utils._rebuild_tensor_v2", "ForkingPickler"),
        ("os.system", "send tensors alone"),
    ],
)
def test_the_refusal_says_what_to_do(name: str, advice: str) -> None:
    assert advice in refusal(a_call(name, (), 2))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_object_that_runs_a_command(protocol: int, tmp_path: Path) -> None:
    victim = tmp_path / "touched"

    class Gadget:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            import os

            return os.system, (f"touch {victim}",)

    payload = pickle.dumps([("w", Gadget())], protocol)
    assert "system'" in refusal(payload)
    assert not victim.exists()


def test_a_payload_within_a_payload_is_read_in_the_same_way() -> None:
    local = b"csglang.srt.model_executor.model_runner\nLocalSerializedTensor\n)\x81}"
    inner = a_call("os.system", ("true",), 2)
    values = b"X\x06\x00\x00\x00values](B" + struct.pack("<I", len(inner)) + inner + b"e"
    payload = b"\x80\x02]X\x01\x00\x00\x00w" + local + values + b"sb\x86a."
    assert "the name 'os.system'" in refusal(payload)


OPCODES = {
    "POP": b"N0.",
    "POP_MARK": b"(N1.",
    "DUP": b"N2.",
    "FLOAT": b"F1.0\n.",
    "BINFLOAT": b"G" + bytes(8) + b".",
    "LONG4": b"\x8b\x01\x00\x00\x00\x01.",
    "STRING": b"S'a'\n.",
    "BINSTRING": b"T\x01\x00\x00\x00a.",
    "SHORT_BINSTRING": b"U\x01a.",
    "BYTEARRAY8": b"\x96" + bytes(8) + b".",
    "EMPTY_SET": b"\x8f.",
    "ADDITEMS": b"\x90.",
    "FROZENSET": b"(\x91.",
    "INST": b"(ios\nsystem\n.",
    "OBJ": b"(No.",
    "NEWOBJ_EX": b"\x92.",
    "PERSID": b"Pa\n.",
    "BINPERSID": b"NQ.",
    "EXT1": b"\x82\x01.",
    "EXT2": b"\x83\x01\x00.",
    "EXT4": b"\x84\x01\x00\x00\x00.",
    "NEXT_BUFFER": b"\x97.",
    "READONLY_BUFFER": b"N\x98.",
}


@pytest.mark.parametrize("name", OPCODES)
def test_an_opcode_without_use_is_refused_and_named(name: str) -> None:
    assert f"opcode {name}" in refusal(OPCODES[name])


MALFORMED = {
    "nothing": (b"", "ends after 0 bytes"),
    "no STOP": (b"N", "ends after 1 bytes"),
    "a tail": (b"N.N", "1 bytes follow STOP"),
    "no opcode": (b"\xff", "byte 0xff, which is no opcode"),
    "two things": (b"NN.", "leaves 2 things"),
    "none left": (b".", "leaves 0 things"),
    "a mark left": (b"(.", "more than there is"),
    "an empty stack": (b"R.", "more than there is"),
    "no mark": (b"Nt.", "wants a MARK"),
    "a mark in the way": (b"(NR.", "more than there is"),
    "append to nothing": (b"(e.", "nothing is"),
    "append to a tuple": (b")Na.", "wanted a new list"),
    "append to a number": (b"NNa.", "wanted a new list"),
    "set in a list": (b"]NNs.", "wanted a new dict"),
    "half a pair": (b"}(Nu.", "key without a value"),
    "a key that is a number": (b"}K\x01Ns.", "the key int"),
    "a list in itself": (b"]q\x00h\x00a.", "before it is complete"),
    "a dict in itself": (b"}q\x00V\nh\x00s.", "before it is complete"),
    "an unknown place": (b"h\x07.", "nothing is there"),
    "a sealed list": (b"]q\x00\x85h\x00Na\x86.", "wanted a new list"),
    "a sealed dict": (b"}q\x00\x85h\x00VNs\nNs\x86.", "wanted a new dict"),
    "protocol 6": (b"\x80\x06N.", "protocol 6"),
    "a long length": (b"\x8d" + b"\xff" * 8 + b".", "are left"),
    "a text past the end": (b"X\x05\x00\x00\x00ab.", "are left"),
    "no UTF-8": (b"X\x01\x00\x00\x00\xff.", "is not UTF-8"),
    "no escape": (b"V\\ud\n.", "is not escaped text"),
    "a long integer": (b"\x8a\x0a" + bytes(10) + b".", "an integer of 10 bytes"),
    "a long number": (b"L" + b"9" * 100 + b"L\n.", "no end of line"),
    "no number": (b"Iabc\n.", "is no number"),
    "a superscript": (b"I\xc2\xb2\n.", "is no number"),
    "a name with a space": (b"ctorch size\nx\n.", "is no name"),
    "a line without end": (b"Vabc", "no end of line"),
    "a call of nothing": (b"N)R.", "NoneType is called"),
    "a call of a dtype": (b"ctorch\nuint8\n)R.", "torch.uint8 is called"),
    "arguments in a list": (b"ctorch\nSize\n]R.", "wanted a tuple"),
    "an instance of a function": (b"ctorch\nSize\n)\x81.", "which has no fields"),
    "an instance with arguments": (
        b"csglang.srt.model_executor.model_runner\nLocalSerializedTensor\nN\x85\x81.",
        "wanted fields",
    ),
    "a class that is called": (
        b"csglang.srt.model_executor.model_runner\nLocalSerializedTensor\n)R.",
        "wanted an instance",
    ),
    "fields of a function": (b"ctorch\nSize\n)R}b.", "and has none"),
    "fields that are none": (
        b"csglang.srt.model_executor.model_runner\nLocalSerializedTensor\n)\x81Nb.",
        "wanted a dict",
    ),
    "fields twice": (
        b"csglang.srt.model_executor.model_runner\nLocalSerializedTensor\n)\x81}b}b.",
        "fields twice",
    ),
    "a name made of numbers": (b"\x80\x04K\x01K\x02\x93.", "make no name"),
    "an encoding that is none": (b"c_codecs\nencode\nVa\nVrot13\n\x86R.", "no way in which"),
    "an encoding of bytes": (b"c_codecs\nencode\nC\x01aVlatin1\n\x86R.", "no way in which"),
    "an encoding past 255": (b"c_codecs\nencode\nV\\u20ac\nVlatin1\n\x86R.", "past 255"),
    "bytes of a number": (b"cbuiltins\nbytes\nJ\xff\xff\xff\x7f\x85R.", "no way in which"),
    "an object of its own": (b"cbuiltins\nobject\n)R.", "no way in which"),
    "a reconstructor of a tensor": (
        b"ccopy_reg\n_reconstructor\nctorch\nTensor\nc__builtin__\nobject\nN\x87R.",
        "no way in which",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_malformed_is_refused_and_said(case: str) -> None:
    payload, wanted = MALFORMED[case]
    with nothing_happens(), pytest.raises(PayloadRefused) as caught:
        read(payload, Budget())
    assert wanted in str(caught.value)


def test_a_load_format_that_is_code_is_not_imported() -> None:
    message = refusal(b"].", load_format="verl.workers.rollout.delta_loader.apply_delta")
    assert "is never imported" in message


def test_nothing_in_core_or_plug_ins_unpickles() -> None:
    words = ("pickle.load", "Unpickler", "dill", "cloudpickle", "find_class", "marshal",
             "import pickle", "from pickle", "import _pickle", "from _pickle", "allow_pickle=True",
             "weights_only=False", "shelve", "joblib", "import_module(\"pickle")  # fmt: skip
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for folder in ("hotswap", "plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "tests" not in path.parts
        for text in [path.read_text(encoding="utf-8")]
        for word in words
        if word in text
    ]
    assert found == []
