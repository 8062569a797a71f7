"""Reading traces: what is refused, and with which place."""

import re
from pathlib import Path

import pytest

from model.workloads.traces import TraceError, _trace_names, read_nodes, read_pods
from tests.model.builders import write_openb

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"


def test_lists_are_sorted_by_name(tmp_path: Path) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES + "b,2000,4096,2,T4\na,1000,2048,0,\n")
    nodes = read_nodes(tmp_path)
    assert (nodes.names, nodes.cpu_milli.tolist(), nodes.models) == (("a", "b"), [1000, 2000], ("", "T4"))
    assert nodes.gpu_milli == 2000

    (tmp_path / "openb_pod_list_x.csv").write_text(PODS + "q,1,2,1,250,A|B,10,50,20\np,1,2,0,0,A,10,50,\n")
    pods = read_pods(tmp_path, "x")
    assert pods.names == ("p", "q")
    assert pods.asked_milli.tolist() == [0, 250]
    assert pods.gpu_spec == ("", "A|B")  # a pod without GPUs needs no model
    assert pods.duration_s is not None
    assert pods.duration_s.tolist() == [40, 30]  # from its creation, where it never was scheduled


def test_bad_nodes(tmp_path: Path) -> None:
    path = tmp_path / "openb_node_list_gpu_node.csv"
    for text, fault in (
        ("", "line 1: empty; the first line must name the columns sn, cpu_milli, memory_mib, gpu, model"),
        ("sn,cpu_milli,memory_mib\n", "line 1: no column gpu, model; there are sn, cpu_milli, memory_mib"),
        (NODES, "no nodes"),
        (NODES + "a,1,2,0\n", "line 2: 4 values, but 5 columns"),
        (NODES + "a,1,2,0,\na,1,2,0,\n", 'line 3, column sn: "a" is not a unique name'),
        (NODES + "a,1.5,2,0,\n", 'line 2, column cpu_milli: "1.5" is not a whole number'),
        (NODES + "a,²,2,1,T4\n", 'line 2, column cpu_milli: "²" is not a whole number'),
        (NODES + "a,0,2,0,\n", 'line 2, column cpu_milli: "0" is not between 1 and '),
        (NODES + "a,1,2,63,T4\n", 'line 2, column gpu: "63" is not between 0 and 62'),
        (NODES + "a,1,2,1,\n", 'line 2, column model: "" is not a GPU model'),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(TraceError, match=f"^{path}: {fault}"):
            read_nodes(tmp_path)
    path.write_bytes(NODES.encode() + b"\xff\xfe,1,2,0,\n")
    with pytest.raises(TraceError, match="utf-8"):
        read_nodes(tmp_path)


def test_bad_pods(tmp_path: Path) -> None:
    path = tmp_path / "openb_pod_list_x.csv"
    for row, fault in (
        ("p,1,2,1,0,,1,2,1", 'gpu_milli: "0" is not between 1 and 1000'),
        ("p,1,2,2,500,,1,2,1", 'gpu_milli: "500" is not 1000; only a pod with one GPU can request a share'),
        ("p,1,2,1,500,A||B,1,2,1", 'gpu_spec: "A||B" is not model names such as "A|B"'),
        ("p,1,2,1,500,,x,2,1", 'creation_time: "x" is not a number'),
        ("p,1,2,1,500,,nan,2,1", 'creation_time: "nan" is not between 0 and '),
        ("p,1,2,1,500,,1,2,3", 'deletion_time: "2" is not at or after the pod\'s start'),
    ):
        path.write_text(f"{PODS}{row}\n")
        with pytest.raises(TraceError, match=re.escape(f"{path}: line 2, column {fault}")):
            read_pods(tmp_path, "x")


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    write_openb(tmp_path)
    (tmp_path / "openb_pod_list_x.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,2,1,1000\n")
    assert read_pods(tmp_path, "x").submitted_s is None  # times may be absent
    assert _trace_names(tmp_path) == ["small", "x"]
    for name in ("other", "../small", ""):
        with pytest.raises(TraceError, match="there are small, x"):
            read_pods(tmp_path, name)
    with pytest.raises(TraceError, match="No such file"):
        read_nodes(tmp_path / "nowhere")
