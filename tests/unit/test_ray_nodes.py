"""Which nodes of a cluster get jobs, with an imitated Ray whose answers the tests set."""

import sys
from types import SimpleNamespace

import pytest

from trisect.core.errors import StudyError
from trisect.engine import ray_nodes
from trisect.engine.node import NodeFacts
from trisect.engine.parcels import pack
from trisect.engine.ray_nodes import ASKS, RayNodes


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


@pytest.fixture
def ray(monkeypatch):
    """One node, which is there and has one core; `answers` are what it says, one after the other."""
    fake = SimpleNamespace()
    fake.node = {"NodeID": "n", "NodeManagerHostname": "far", "Resources": {"CPU": 1.0}, "Alive": True}
    fake.answers = []
    fake.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def get(answer):
        if isinstance(answer, Exception):
            raise answer
        return answer

    fake.nodes, fake.get = lambda: [fake.node], get
    fake.wait = lambda refs, **how: (refs, [])
    fake.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "head")
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_nodes, "LOOK", 0)
    monkeypatch.setattr(ray_nodes, "node_facts", lambda: NodeFacts({"code": "1"}, ""))
    monkeypatch.setattr(RayNodes, "_describe", lambda self, node: fake.answers.pop(0))
    return fake


def said(**versions):
    return pack({"versions": versions, "processor": ""}, {})


def test_a_node_that_fails_to_answer_is_asked_again_while_it_is_there(ray):
    ray.answers = [RayError("its process ended")] * (ASKS - 1) + [said(code="1")]
    nodes = RayNodes("own", "call", False, 1)
    nodes.wait_for_one(0)
    assert (nodes.room(), nodes.gone("n"), ray.answers) == (1, None, [])


def test_a_node_that_never_answers_is_refused_by_name(ray):
    ray.answers = [RayError("its process ended\nmore")] * ASKS
    with pytest.raises(StudyError) as caught:
        RayNodes("own", "call", False, 1).wait_for_one(0)
    assert caught.value.given == "1 of 1 nodes cannot be used."
    assert caught.value.known == f"far failed to answer {ASKS} times: RayError: its process ended"
    assert "leave these nodes out" in caught.value.todo


def test_a_node_that_goes_while_it_is_asked_is_gone_and_not_refused(ray):
    ray.answers = [RayError("its node died"), said(code="1")]
    nodes = RayNodes("own", "call", False, 1)
    ray.node["Alive"] = False
    nodes.look()
    nodes.look()
    assert (nodes.room(), nodes.refused(), bool(nodes.gone("n")), len(ray.answers)) == (0, {}, True, 1)


def test_a_node_that_differs_is_said_to(ray):
    ray.answers = [said(code="2")]
    with pytest.raises(StudyError) as caught:
        RayNodes("own", "call", False, 1).wait_for_one(0)
    assert (caught.value.given, caught.value.known) == (
        "1 of 1 nodes differ from this machine.",
        "far has code 2 (here 1)",
    )
