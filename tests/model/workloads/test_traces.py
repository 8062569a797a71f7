"""Reading traces: what is refused, and with which place."""

from pathlib import Path

import numpy as np
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


def test_times_may_be_absent(tmp_path: Path) -> None:
    write_openb(tmp_path)
    (tmp_path / "openb_pod_list_x.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,2,1,1000\n")
    assert read_pods(tmp_path, "x").submitted_s is None
    assert _trace_names(tmp_path) == ["small", "x"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: empty; the first line must name the columns sn, cpu_milli, memory_mib, gpu, model"),
        ("sn,cpu_milli,memory_mib\n", "line 1: no column gpu, model; there are sn, cpu_milli, memory_mib"),
        (NODES, "no nodes"),
        (NODES + "a,1,2,0\n", "line 2: 4 values, but 5 columns"),
        (NODES + "a,1,2,0,\na,1,2,0,\n", 'line 3, column sn: "a" is not a unique name'),
        (NODES + "a,1.5,2,0,\n", 'line 2, column cpu_milli: "1.5" is not a whole number'),
        (NODES + "a,0,2,0,\n", 'line 2, column cpu_milli: "0" is not between 1 and '),
        (NODES + "a,1,-2,0,\n", 'line 2, column memory_mib: "-2" is not between 1 and '),
        (NODES + "a,1,2,63,T4\n", 'line 2, column gpu: "63" is not between 0 and 62'),
        (NODES + "a,1,2,1,\n", 'line 2, column model: "" is not a GPU model'),
        (NODES + "a,²,2,1,T4\n", 'column cpu_milli: "²" is not a whole number'),
    ],
    ids=["empty", "columns", "no rows", "short", "twice", "fraction", "zero", "negative", "too many", "no model", "²"],
)
def test_bad_nodes(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "openb_node_list_gpu_node.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as raised:
        read_nodes(tmp_path)
    assert str(raised.value).startswith(f"{path}: ")
    assert fault in str(raised.value)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("p,1,2,1,0,,1,2,1", 'column gpu_milli: "0" is not between 1 and 1000'),
        ("p,1,2,2,500,,1,2,1", 'column gpu_milli: "500" is not 1000; only a pod with one GPU can request a share'),
        ("p,1,2,1,500,A||B,1,2,1", 'column gpu_spec: "A||B" is not model names such as "A|B"'),
        ("p,1,2,1,500,,x,2,1", 'column creation_time: "x" is not a number'),
        ("p,1,2,1,500,,nan,2,1", 'column creation_time: "nan" is not between 0 and '),
        ("p,1,2,1,500,,1,2,3", 'column deletion_time: "2" is not at or after the pod\'s start'),
    ],
    ids=["no milli", "share of two", "spec", "time", "nan", "ends early"],
)
def test_bad_pods(tmp_path: Path, row: str, fault: str) -> None:
    path = tmp_path / "openb_pod_list_x.csv"
    path.write_text(PODS + row + "\n")
    with pytest.raises(TraceError) as raised:
        read_pods(tmp_path, "x")
    assert str(raised.value).startswith(f"{path}: line 2, ")
    assert fault in str(raised.value)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    write_openb(tmp_path)
    for name in ("other", "../small", ""):
        with pytest.raises(TraceError, match="there are small"):
            read_pods(tmp_path, name)
    with pytest.raises(TraceError, match="No such file"):
        read_nodes(tmp_path / "nowhere")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv").write_bytes(b"sn,cpu_milli,memory_mib,gpu,model\n\xff\xfe,1,2,0,\n")
    with pytest.raises(TraceError, match="utf-8"):
        read_nodes(tmp_path)


def test_generated_folder_is_read(tmp_path: Path) -> None:
    write_openb(tmp_path, num_pods=40)
    pods = read_pods(tmp_path, "small")
    assert len(pods.names) == 40
    assert np.all(pods.gpu_milli[pods.num_gpus > 1] == 1000)
