"""Verdicts on programs: what a program does to its own process wins it no test."""

import pytest

from rlboost_jax.workers.sandbox import NotContained
from tests.patience import PATIENCE_SECONDS

try:
    from rlboost_jax.rewards import code as code_module
except NotContained as error:
    pytest.skip(str(error), allow_module_level=True)

ALWAYS = """
class Always:
    def yes(self, *_): return True
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = yes
    def zero(self, *_): return 0
    __sub__ = __rsub__ = __abs__ = __float__ = __int__ = __index__ = __round__ = zero
    __hash__ = zero
    def same(self, *_): return self
    __getattr__ = __getitem__ = __call__ = __truediv__ = __mod__ = __mul__ = __pow__ = same
double = lambda x: Always()
"""
# A program that knows how it is contained: it looks for the test, a secret, and the line to them.
FIND = """
import gc, json, os, sys
def frames():
    frame = sys._getframe()
    while frame is not None:
        yield from (frame.f_locals, frame.f_globals)
        frame = frame.f_back
"""
# What stands for every answer, in the form of the line and in those of earlier releases.
FORGED = """
import json, os
for message in ([0, "ready", ["double"]], *([n, "value", True, None, ""] for n in range(9))):
    data = json.dumps(message).encode()
    for file in range(64):
        try:
            os.write(file, len(data).to_bytes(4, "big") + data)
        except OSError:
            pass
for file in range(64):
    try:
        os.write(file, b"\\npassed\\nOK\\n1.0\\n")
    except OSError:
        pass
"""
ATTACKS = {
    "equal to everything": ALWAYS,
    "an int that is equal to everything": """
class Int(int):
    __eq__ = __lt__ = __gt__ = lambda *_: True
    __hash__ = int.__hash__
    __sub__ = __rsub__ = lambda *_: 0
double = lambda x: Int(7)
""",
    "a text that is equal to everything": """
class Text(str):
    __eq__ = startswith = lambda *_: True
    __hash__ = str.__hash__
double = lambda x: Text("7")
""",
    "a class that claims to be an int": ALWAYS + "Always.__class__ = property(lambda s: int)",
    "a pickle of its own": ALWAYS + "Always.__reduce__ = lambda s: (int, (4,))",
    "the secret, from a caller's frame": FIND
    + """
for names in frames():
    header = names.get("header")
    if isinstance(header, dict) and "token" in header:
        print(header["token"], flush=True)
        os._exit(0)
""",
    "the test, from a caller's frame or any object": FIND
    + """
seen = [str(v) for names in frames() for v in names.values()] + [
    str(o) for o in gc.get_objects() if isinstance(o, (dict, list)) and len(str(o)[:10**5]) < 10**5
]
def double(x):
    return 4 if any("== " + "4" in text for text in seen) else 5
""",
    "a forged answer": FORGED,
    "a forged answer, and an end": FORGED + "os._exit(0)",
    "an end as of one that came to it": "import os; os._exit(98)",
    "SystemExit": "raise SystemExit(0)",
    "SystemExit when it is called": "def double(x): raise SystemExit(0)",
    "an end when it is called": "import os\ndef double(x): os._exit(98)",
    "an end at exit": "import atexit, os\natexit.register(os._exit, 98)\ndouble = hex",
    "abs, and others of Python's names": """
abs = float = round = sum = lambda *_: 0
all = any = isinstance = sorted = lambda *_: True
class AssertionError(Exception): pass
class Counter: __eq__ = lambda *_: True
def double(x): return 5
""",
    "modules that were changed": """
import builtins, collections, json, math, sys, types
builtins.abs = lambda x: 0
math.isclose = lambda *a, **k: True
builtins.AssertionError = builtins.Exception = ValueError
collections.Counter = type("Counter", (), {"__eq__": lambda *_: True})
json.dumps = lambda *_, **k: '[1, "value", true, null, ""]'
json.loads = lambda *_: [1, "value", True, None, ""]
isclose = math.isclose
def double(x): return 5
""",
    "a trace function": """
import sys
def trace(frame, event, arg):
    frame.f_trace_opcodes = True
    if "test" in frame.f_code.co_filename: frame.f_lineno += 1
    return trace
sys.settrace(trace)
def double(x): return 5
""",
    "standard output of its own": "import io, sys\nsys.stdout = io.StringIO()\ndouble = len",
    "a process that answers later": """
import os
if os.fork() == 0:
    pass
def double(x): return 5
""",
    "a thread that answers later": """
import os, threading
def flood():
    while True:
        for file in range(3, 64):
            try: os.write(file, b'\\0\\0\\0\\x1a[1, "value", true, null, ""]')
            except OSError: pass
threading.Thread(target=flood, daemon=True).start()
def double(x): return 5
""",
    "10 GB of output": "while True: print('4' * 10**6)",
    "10 GB of an answer": """
def double(x): return [4] * (10**10)
""",
    "a value of endless members": """
class Endless:
    def __iter__(self): return self
    def __next__(self): return 5
    __eq__ = lambda *_: True
double = lambda x: Endless()
""",
    "a deep value": "def double(x):\n    for _ in range(10**5): x = [x]\n    return x",
    "a value in itself": "def double(x):\n    x = []\n    x.append(x)\n    return x",
    "a value of the test that it was given": "def double(x):\n    return type(x)",
    "the memory of others": """
import ctypes, gc, inspect, os
for pid in range(os.getppid() - 3, os.getpid() + 9):
    try: open(f"/proc/{pid}/mem", "r+b").write(b"x")
    except OSError: pass
def double(x): return 5
""",
}
# What a test may say of a right answer, which is 4. Winning is that any of it holds.
CHECKS = (
    "double(2) == 4",
    "not double(2) != 4",
    "3 < double(2) < 5",
    "abs(double(2) - 4.0) < 1e-6",
    "round(double(2) - 4, 3) == 0",
    "(double(2) / 4.0).real == 1.0",
    "(double(2) - 4) ** 2 <= 1e-9",
    "not (double(2) - 4)",
    "math.isclose(double(2), 4.0)",
    "isclose(double(2), 4)",
    "[double(2)] == [4]",
    "double(2) in (4,)",
    "{double(2): 1} == {4: 1}",
    "{double(2)} == {4}",
    "Counter([double(2)]) == Counter([4])",
    "isinstance(double(2), int) and double(2) == 4",
    "str(double(2)) == '4'",
    "f'{double(2):.1f}' == '4.0'",
    "double(2) is not None and double(2) == 4",
    "4 == double(2)",
    "sum([double(2)]) == 4",
    "'a' + 'b' * double(2) == 'abbbb'",
    "[0] * double(2) == [0] * 4",
    "unittest.TestCase().assertAlmostEqual(double(2), 4.0) is None",
    "'%d' % double(2) == '4'",
    "sorted([double(2), 5]) == [4, 5]",
    "max(double(2), 0) == 4",
    "all(a == b for a, b in zip([double(2)], [4]))",
)
TEST = f"""
import math, unittest
def holds(check):
    try:
        return eval(check, globals())
    except Exception:
        return False
held = [check for check in {CHECKS!r} if holds(check)]
double, Counter, isclose  # names of the program's that the test reads
assert len(held) >= LEAST
"""


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_wins(attack):
    program = f"from collections import Counter\nfrom math import isclose\n{ATTACKS[attack]}"
    (reward,) = code_module.code(
        ["p"], [program], tests=[TEST.replace("LEAST", "1")], seconds=PATIENCE_SECONDS
    )
    assert reward == 0.0


@pytest.mark.parametrize(
    "said",
    [
        *("double(2).__eq__(4)", "double(2).__lt__(5)", "type(double(2)) is type(4)"),
        *("type(double(2)) == int", "type(double(2)) in (int, float)"),
    ],
)
def test_an_object_of_the_program_says_nothing_of_itself(said):
    """Python's own answer, `NotImplemented`, counts as true."""
    given = {"tests": [f"assert {said}"], "seconds": PATIENCE_SECONDS}
    assert code_module.code(["p"], [ALWAYS], **given) == [0.0]


def test_a_right_program_passes_all_of_it():
    program = "from collections import Counter\nfrom math import isclose\ndouble = lambda x: 2 * x"
    test = TEST.replace("LEAST", str(len(CHECKS)))
    assert code_module.code(["p"], [program], tests=[test], seconds=PATIENCE_SECONDS) == [1.0]


HONEST = {
    "what it changes in place": (
        "def sort(x): x.sort()\ndef put(d, k): d[k] = [k]; return d\n"
        "def flip(rows):\n    for row in rows: row.reverse()",
        "a, d, rows = [3, 1, 2], {}, [[1, 2], [3]]\nsort(a)\nassert a == [1, 2, 3]\n"
        "assert put(d, 5) is d and d == {5: [5]}\nflip(rows)\nassert rows == [[2, 1], [3]]",
    ),
    "a function of the test that calls the program again": (
        "def apply(f, n): return 1 if n == 0 else n * f(n - 1)",
        "def again(n): return apply(again, n)\nassert apply(again, 5) == 120",
    ),
    "values of every plain kind": (
        "def same(x): return x",
        "for x in (None, True, 2**100, -1.5, 1j, 'a\\ud800', b'b', (1, [2]), {1: {2}},\n"
        "    frozenset({3}), [float('inf')], range(3), bytearray(b'c'), -0.0):\n"
        "    y = same(x)\n    assert type(y) is type(x) and y == x and repr(y) == repr(x)",
    ),
    "values of the library": (
        "import collections, fractions, decimal, datetime\nfrom collections import Counter\n"
        "def count(x): return Counter(x)\ndef half(): return fractions.Fraction(1, 2)\n"
        "def tenth(): return decimal.Decimal('0.1')\ndef day(): return datetime.date(2024, 2, 29)\n"
        "def grouped():\n    d = collections.defaultdict(list)\n    d[1].append(2)\n    return d\n"
        "def queue(): return collections.deque([1, 2])",
        "from fractions import Fraction\nfrom decimal import Decimal\nimport datetime\n"
        "from collections import deque\n"
        "assert count('aab') == {'a': 2, 'b': 1} == Counter('aab')\n"
        "assert isinstance(count(''), dict) and half() == Fraction(1, 2) == 0.5\n"
        "assert tenth() == Decimal('0.1') and day() == datetime.date(2024, 2, 29)\n"
        "assert grouped() == {1: [2]} and queue() == deque([1, 2])",
    ),
    "numpy": (
        "import numpy as np\ndef total(x): return np.sum(x)\ndef twice(x): return np.array(x) * 2",
        "assert total([1, 2]) == 3\nassert np.array_equal(twice([1, 2]), np.array([2, 4]))",
    ),
    "single numbers of numpy": (
        "import numpy as np\ndef total(x): return np.sum(x)\n"
        "def third(): return np.float32(1) / 3\n"
        "def more(x): return x.any() and x[0] > 1",
        "import numpy as np\nassert isinstance(total([1, 2]), np.integer)\n"
        "assert third().dtype == np.float32 and third() == np.float32(1) / 3\n"
        "assert total(np.array([1.5])).round(1) == 1.5 and more(np.array([2])) is True",
    ),
    "types of its objects": (
        "class A: pass\nclass B(A): pass\nclass N(int): pass\n"
        "def made(): return B()\ndef number(): return N(3)",
        "b = made()\nassert type(b) is B and type(b) is not A and type(b) in (A, B)\n"
        "assert type(number()) is N and type(number()) is not int and type(3) is int\n"
        "assert isinstance(int, type) and type('T', (), {'x': 1}).x == 1\n"
        "assert type(b).__name__ == 'B' and type(b) == type(B()) and issubclass(type, type)\n"
        "def same(kind: type[int] | None) -> type: return kind\nassert same(int) is int",
    ),
    "a program that runs an event loop": (
        "import asyncio\nasync def twice(x):\n    await asyncio.sleep(0)\n    return 2 * x\n"
        "async def both(x): return await asyncio.gather(twice(x), asyncio.to_thread(lambda: x))\n"
        "def double(x): return asyncio.run(both(x))",
        "assert double(2) == [4, 2]",
    ),
    "classes, instances, methods": (
        "class Stack:\n    size = 0\n    def __init__(self): self.all = []\n"
        "    def push(self, x): self.all.append(x); self.size += 1\n"
        "    def pop(self): return self.all.pop()\n    def __len__(self): return len(self.all)\n"
        "    def __iter__(self): return iter(self.all)",
        "s = Stack()\ns.push(1)\ns.push([2])\nassert len(s) == 2 and list(s) == [1, [2]]\n"
        "assert isinstance(s, Stack) and not isinstance(3, Stack)\n"
        "assert s.pop() == [2] and s.size == 2\ns.size = 7\nassert s.size == 7 and s == s\n"
        "assert not hasattr(s, 'nothing') and [2] not in s and 1 in s",
    ),
    "operators of its classes": (
        "class V:\n    def __init__(s, x, y): s.x, s.y = x, y\n"
        "    def __add__(s, o): return V(s.x + o.x, s.y + o.y)\n"
        "    def __mul__(s, k): return V(s.x * k, s.y * k)\n"
        "    def __eq__(s, o): return (s.x, s.y) == (o.x, o.y)\n"
        "    def __repr__(s): return f'V({s.x}, {s.y})'",
        "assert V(1, 2) + V(3, 4) == V(4, 6) and V(1, 2) * 3 == V(3, 6) != V(0, 0)\n"
        "assert repr(V(1, 2)) == 'V(1, 2)' and (V(1, 2) * 2).y == 4",
    ),
    "a linked list": (
        "class Node:\n    def __init__(s, x, next=None): s.x, s.next = x, next\n"
        "def turned(n):\n    last = None\n"
        "    while n: n.next, last, n = last, n, n.next\n    return last",
        "n = turned(Node(1, Node(2)))\nassert n.x == 2 and n.next.x == 1 and n.next.next is None",
    ),
    "tuples with names, numbers with names, data classes": (
        "from collections import namedtuple\nfrom enum import Enum, IntEnum\n"
        "from dataclasses import dataclass\nP = namedtuple('P', 'x y')\n"
        "class C(IntEnum):\n    RED = 1\nclass D(Enum):\n    UP = 1\n"
        "@dataclass\nclass R:\n    a: int\n"
        "def point(): return P(1, 2)\ndef red(): return C.RED\ndef up(): return D.UP",
        "assert point() == (1, 2) and point().y == 2 and point()[0] == 1\n"
        "assert isinstance(point(), tuple) and red() == 1 and red() + 1 == 2\n"
        "assert up() == D.UP and up() is D.UP and up().value == 1 and R(1) == R(1) != R(2)",
    ),
    "what it raises": (
        "class Own(ValueError): pass\n"
        "def fails(kind):\n    if kind: raise Own('a', 1)\n    return {}['b']",
        "for kind, error in (True, Own), (True, ValueError), (False, KeyError):\n"
        "    try:\n        fails(kind)\n    except error as e:\n"
        "        assert e.args == (('a', 1) if kind else ('b',))\n    else:\n        assert False",
    ),
    "functions of the test": (
        "def each(f, *all): return [f(x) for x in all]\ndef made(n): return lambda x: x + n\n"
        "def safe(f):\n    try: f()\n    except ZeroDivisionError as e: return str(e)",
        "seen = []\nassert each(lambda x: x * 2, 1, 2) == [2, 4] and each(str, 1) == ['1']\n"
        "each(seen.append, 1, 2)\nassert seen == [1, 2] and made(3)(4) == 7\n"
        "assert 'zero' in safe(lambda: 1 / 0) and each(made(1), 1) == [2]",
    ),
    "generators and iterators": (
        "def count(n):\n    while True:\n        yield n\n        n += 1\n"
        "def total(x): return sum(x)",
        "from itertools import islice\ng = count(3)\nassert next(g) == 3\n"
        "assert list(islice(g, 2)) == [4, 5] and total(x for x in (1, 2)) == 3\n"
        "assert total({1: 2}.values()) == 2",
    ),
    "what it prints and sets": (
        "def greet():\n    global greeted\n    greeted = print('hi') or 1",
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as said:\n"
        "    greet()\nassert said.getvalue() == 'hi\\n' and greeted == 1",
    ),
    "errors of its own, one derived from the other": (
        "class A(Exception):\n    def __init__(s, code): super().__init__('no'); s.code = code\n"
        "    def __str__(s): return f'{s.code}!'\nclass B(A): pass\n"
        "def f(verb, called): raise B(called)",
        "assert issubclass(B, A)\ntry: f(verb=1, called=5)\n"
        "except A as e: assert (e.code, str(e)) == (5, '5!')\nelse: assert False",
    ),
    "what it changes in place, of the library": (
        "import numpy\nfrom collections import *\nclass S:\n    __getitem__ = lambda s, k: k\n"
        "def put(q, c, d, a, o):\n    q.append(1); o['z'] = 1; c['x'] += 2\n"
        "    d['y'].append(3); a += a.sum()\n"
        "    return defaultdict(int)",
        "import numpy as np\nfrom collections import *\n"
        "q, c, d = deque(), Counter(), defaultdict(list)\n"
        "a = np.ones(2)\no = OrderedDict()\n"
        "assert put(q, c, d, a, o)[7] == 0 and S()[1:2] == slice(1, 2)\n"
        "assert q == deque([1]) and c == {'x': 2} and d == {'y': [3]} and a.tolist() == [3, 3]\n"
        "assert o == OrderedDict(z=1)",
    ),
    "a test that exits well": ("def f(): return 1", "assert f() == 1\nraise SystemExit(False)"),
    "a function with a name of Python's": ("def sum(a, b): return a - b", "assert sum(5, 3) == 2"),
    "a check that is given the function": (
        "def double(x): return 2 * x",
        "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(x=3) == 6\n\n"
        "check(double)",
    ),
    "names, and modules that the test leaves to it": (
        "import math\nfrom typing import List\nN = 5\ndef f(x): return x / 3",
        "def check(all: List[float]):\n    assert all == [N]\ncheck([5])\n"
        "assert math.isclose(f(1), 1 / 3)\nassert 'unknown' not in globals()",
    ),
}


@pytest.mark.parametrize("what", HONEST)
def test_what_honest_tests_need(what):
    program, test = HONEST[what]
    assert code_module.code(["p"], [program], tests=[test], seconds=PATIENCE_SECONDS) == [1.0]


@pytest.mark.parametrize(
    "test",
    [
        "class Node: pass\ndouble(Node())",
        "class Node: pass\ndouble([Node])",
        "class Own(Base): pass",
        "double('x' * 2**26)",
    ],
)
def test_what_cannot_be_given_to_a_program_is_a_fault_of_the_test(test):
    program = "class Base: pass\ndef double(x): return x"
    with pytest.raises(ValueError, match=r"a test .*; see docs/how-to/rewards.md"):
        code_module.code(["p"], [program], tests=[test], seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "program",
    [
        "import os; os._exit(0)",
        "import os; os._exit(98)",
        "print(5); raise SystemExit(98)",
        FIND + "print(next((v for n in frames() for v in n.values() if v == '4'), 5))",
        "import os\ntry:\n    for f in range(64): os.write(f, b'4')\nexcept OSError: 1 / 0",
    ],
)
def test_output_is_compared_where_the_program_is_not(program):
    tests = [[{"input": "2", "output": "4"}]]
    assert code_module.code(["p"], [program], tests=tests, seconds=PATIENCE_SECONDS) == [0.0]
