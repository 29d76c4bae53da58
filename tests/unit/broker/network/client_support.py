"""Another node, which answers requests, and a client that sends them, over the simulation's network."""

from ottla.broker.network import NetworkServer
from ottla.broker.network.client import ClientSettings, NodeClient
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.framing import decode_request_header, encode_response_header
from ottla.protocol.messages import api_versions, fetch, heartbeat


class Node:
    """Another node: answers Heartbeat with the generation as throttle time, and Fetch with so many bytes."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.server = NetworkServer(runtime, self.dispatch)
        self.served = {18: (0, 5), 12: (0, 3), 1: (4, 18)}
        self.seen = []
        self.introductions = []
        self.connections = []
        self.held = []
        self.is_holding = False
        self.garble = None

    def dispatch(self, frame, connection):
        header, body_at = decode_request_header(frame)
        key, version = header.api_key, header.api_version
        self.seen.append((key, version))
        if connection not in self.connections:
            self.connections.append(connection)
        if key == ApiKey.API_VERSIONS:
            self.introductions.append(decode_request(key, version, frame[body_at:]))
            return self.api_versions(header)
        request = decode_request(key, version, frame[body_at:])
        if key == ApiKey.FETCH:
            response = fetch.FetchResponse(
                responses=[fetch.FetchableTopicResponse(partitions=[self.partition(request.max_bytes)])]
            )
        else:
            response = heartbeat.HeartbeatResponse(throttle_time_ms=request.generation_id)
        reply = [
            encode_response_header(key, version, header.correlation_id),
            encode_response(key, version, response),
        ]
        if self.garble:
            reply = self.garble(reply)
        if self.is_holding:
            future = self.runtime.loop.create_future()
            self.held.append((future, reply))
            return future
        return reply

    def partition(self, size):
        return fetch.PartitionData(partition_index=0, high_watermark=1, records=b"r" * size)

    def api_versions(self, header):
        _, last = self.served[18]
        refused = header.api_version > last
        response = api_versions.ApiVersionsResponse(
            error_code=35 if refused else 0,
            api_keys=[
                api_versions.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in self.served.items()
            ],
        )
        version = 0 if refused else header.api_version
        return [
            encode_response_header(18, version, header.correlation_id),
            encode_response(18, version, response),
        ]

    def release(self):
        self.is_holding = False
        for future, reply in self.held:
            future.set_result(reply)
        self.held.clear()


class World:
    """A node at `other`, and a client on `here`."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.node = Node(simulation.runtime("other"))
        self.runtime = simulation.runtime("here")
        self.address = ("other", 9092)

    def client(self, **settings):
        return NodeClient(self.runtime, client_id="me", settings=ClientSettings(**settings))

    async def listen(self):
        self.listening = await self.node.server.listen("PLAINTEXT", "other", 9092)

    def run(self, scenario, **settings):
        async def main():
            await self.listen()
            client = self.client(**settings)
            try:
                await scenario(client)
            finally:
                await client.close()
                await self.node.server.stop()

        self.simulation.run(main())

    async def beat(self, client, generation=1, timeout_s=5.0):
        message = heartbeat.HeartbeatRequest(group_id="g", generation_id=generation, member_id="m")
        response = await client.request(self.address, ApiKey.HEARTBEAT, message, timeout_s=timeout_s)
        return response.throttle_time_ms

    async def fetch(self, client, size):
        message = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=size, topics=[])
        response = await client.request(self.address, ApiKey.FETCH, message, timeout_s=30)
        return response.responses[0].partitions[0].records
