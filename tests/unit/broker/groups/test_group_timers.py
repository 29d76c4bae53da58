from ottla.broker.groups.timers import Timers


class FakeHandle:
    def __init__(self, clock, entry):
        self.clock, self.entry = clock, entry

    def cancel(self):
        if self.entry in self.clock.planned:
            self.clock.planned.remove(self.entry)


class FakeClock:
    def __init__(self):
        self.now, self.planned, self.plans = 0.0, [], 0

    def monotonic(self):
        return self.now

    def call_later(self, delay_s, callback, *args):
        self.plans += 1
        entry = (self.now + delay_s, self.plans, callback, args)
        self.planned.append(entry)
        return FakeHandle(self, entry)

    def advance(self, seconds):
        until = self.now + seconds
        while self.planned and min(self.planned)[0] <= until:
            entry = min(self.planned)
            self.planned.remove(entry)
            self.now = entry[0]
            entry[2](*entry[3])
        self.now = until


def test_a_timer_that_is_set_again_ends_once_and_at_its_last_time():
    clock, fired = FakeClock(), []
    timers = Timers(clock)
    for _ in range(5):
        timers.set("session", 10_000, lambda: fired.append(clock.now))
        clock.advance(3)
    assert clock.plans == 2, "heartbeats do not plan calls"
    clock.advance(20)
    assert fired == [22.0]
    assert len(timers) == 0


def test_a_timer_that_is_set_to_an_earlier_time_ends_then():
    clock, fired = FakeClock(), []
    timers = Timers(clock)
    timers.set("session", 300_000, lambda: fired.append("late"))
    timers.set("session", 1_000, lambda: fired.append("early"))
    clock.advance(400)
    assert fired == ["early"]


def test_timers_can_be_cancelled_one_by_one_and_all():
    clock, fired = FakeClock(), []
    timers = Timers(clock)
    for name in (("g", 1), ("g", 2), ("h", 1), ("i", 1)):
        timers.set(name, 1_000, lambda name=name: fired.append(name))
    timers.cancel(("i", 1))
    timers.cancel(("i", 2))
    timers.cancel(("g", 1))
    timers.cancel(("g", 2))
    clock.advance(1)
    assert fired == [("h", 1)]
    timers.set("x", 1_000, lambda: fired.append("x"))
    assert len(list(timers.cancel_each())) == 1
    clock.advance(5)
    assert fired == [("h", 1)]
    assert clock.planned == []


def test_a_timer_may_set_itself_again():
    clock, fired = FakeClock(), []
    timers = Timers(clock)

    def again():
        fired.append(clock.now)
        if len(fired) < 3:
            timers.set("x", 1_000, again)

    timers.set("x", 1_000, again)
    clock.advance(10)
    assert fired == [1.0, 2.0, 3.0]
