#!/usr/bin/env python3
"""Reads a trace for Perfetto with the messages that Perfetto's own package has, and checks what its trace processor relies
on: every field is known, every event's track is described, slices nest, counters have values. run.py calls it.

    perfetto_check.py FILE.pftrace

The last line is a JSON object with the highest values of the counters `allocated` and `reserved`, each at the moment of the
peak of `allocated`.
"""
import collections
import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb


def known(message):
    """Nothing in the message is unknown to the schema."""
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for m in value if isinstance(value, collections.abc.Sequence) or hasattr(value, "add") else [value]:
                known(m)


trace = pb.Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
known(trace)
tracks, names, open_slices, counters = {}, {}, collections.Counter(), collections.defaultdict(list)
events = collections.Counter()
cleared, values = False, set()
for p in trace.packet:
    assert p.trusted_packet_sequence_id == 1
    if p.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
        cleared = True
    names.update((("note", n.iid), n.name) for n in p.interned_data.debug_annotation_names)
    names.update((("event", n.iid), n.name) for n in p.interned_data.event_names)
    names.update((("value", n.iid), n.str.decode()) for n in p.interned_data.debug_annotation_string_values)
    if p.HasField("track_descriptor"):
        d = p.track_descriptor
        assert d.uuid not in tracks and (not d.parent_uuid or d.parent_uuid in tracks)
        tracks[d.uuid] = d
    if p.HasField("track_event"):
        e = p.track_event
        assert e.track_uuid in tracks and cleared and p.HasField("timestamp")
        for a in e.debug_annotations:
            assert names["note", a.name_iid]
            if a.HasField("string_value_iid"):
                values.add((names["note", a.name_iid], names["value", a.string_value_iid]))
        if e.name_iid:
            assert names["event", e.name_iid]
        events[pb.TrackEvent.Type.Name(e.type)] += 1
        if e.type == pb.TrackEvent.TYPE_COUNTER:
            assert tracks[e.track_uuid].HasField("counter") and e.counter_value >= 0
            assert tracks[e.track_uuid].counter.unit == pb.CounterDescriptor.UNIT_SIZE_BYTES
            counters[tracks[e.track_uuid].name].append((p.timestamp, e.counter_value))
        elif e.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            assert e.name
            open_slices[e.track_uuid] += 1
            assert open_slices[e.track_uuid] == 1
        elif e.type == pb.TrackEvent.TYPE_SLICE_END:
            open_slices[e.track_uuid] -= 1
            assert open_slices[e.track_uuid] == 0
        else:
            assert e.type == pb.TrackEvent.TYPE_INSTANT
assert not +open_slices and all(events[f"TYPE_{k}"] for k in ["COUNTER", "SLICE_BEGIN", "INSTANT"]), events
print(f"  {len(trace.packet)} packets, {len(tracks)} tracks, {dict(events)}")
assert ("tag", "weights") in values and ("pool", "default pool") in values, values
peak = max(counters["allocated"], key=lambda c: c[1])
reserved = [v for t, v in counters["reserved"] if t <= peak[0]][-1]
print(json.dumps({"allocated": peak[1], "reserved": reserved}))
