"""The page of `thalweg web` in a browser, over a real agent."""

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from urllib.parse import quote, urlsplit

import pytest
from agent_support import CHECKOUT, Agent, OverSocket, end, needed, wait_for

BROWSER = "/usr/bin/chromium-headless-shell"
GUIDE = CHECKOUT / "docs/guide"
HOSTILE = "<img src=x onerror=alert(1)>\u202egnp"
SETTINGS = """
[arms]
allow = ["cubic", "reno"]
[learning]
warm_up = 0
score_min = "64KiB"
[initial_window]
enabled = true
segments = [16]
"""
POLICY = """
name = "front"
[[rule]]
name = "to-the-sink"
match = { remote_port = 5001 }
set = { notsent_lowat = "128KiB" }
"""


class Front:
    """A port with the page, and the token that it asks for."""

    def __init__(self, port, token):
        self.port, self.token = port, token
        self.origin = f"http://127.0.0.1:{port}"

    def ask(self, path="/v1/status", method="GET", **headers):
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with_token = {"Authorization": f"Bearer {self.token}"}
        connection.request(method, path, headers=with_token | headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


class Web(Front):
    """`thalweg web` before an agent."""

    def __init__(self, agent):
        self.process = subprocess.Popen(
            agent.command("--json", "web", "--listen", "127.0.0.1:0"),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = json.loads(self.process.stdout.readline())["url"]
        parts = urlsplit(self.url)
        super().__init__(parts.port, parts.query.removeprefix("token="))

    def close(self):
        return end(self.process)


def document(hosts):
    """Hosts as several months would leave them."""

    def arm(value, rate, seed):
        return {
            "value": value * 655, "max_rate": 125_000_000, "weight_q16": 200_000,
            "deviation_q16": 9000 + seed * 100, "log_rate_q16": rate * 65536, "srtt_us": 9000 + seed * 700,
            "min_rtt_us": 8000 + seed * 650, "chosen": 30 + seed, "greedy": 20 + seed, "scored": 25 + seed,
            "segs": 40000, "retrans": seed * 40,
        }  # fmt: skip

    records = [
        {
            "netns": 1, "address": f"203.0.{113 + n // 250}.{n % 250 + 1}", "prefix": 32,
            "connections": 60 + n * 7 % 900, "scored": 50 + n % 300, "switched": n % 4,
            "min_rtt_us": 4000 + n * 311 % 90_000, "max_rate": 125_000_000, "seen_age_ms": 1000 + n * 40_000,
            "forgot_age_ms": None, "queue_q16": 20000, "base_rtt_us": 5000 + n * 311 % 90_000,
            "arms": {"cubic": arm(3850 + n % 80, 23, n % 50), "reno": arm(3850 + (n * 37) % 90, 22, n % 40)},
        }
        for n in range(hosts)
    ]  # fmt: skip
    return {
        "format": "thalweg-hosts", "version": 2, "mode": "thalweg", "boot_id": "another", "own_netns": 1,
        "saved_at_ms": 0, "hosts": records,
    }  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An agent with traffic, several hundred hosts and a policy, and its `web`."""
    needed(BROWSER)
    directory = tmp_path_factory.mktemp("page")
    token = directory / "token"
    token.write_text("0123456789+/=;abcdef")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    http = f'[http]\nlisten = "127.0.0.1:{port}"\ntoken_file = "{token}"\n'
    agent = Agent(directory, SETTINGS + http)
    agent.front = Front(port, token.read_text())
    try:
        # First, so that the agent knows its namespace.
        agent.traffic()
        agent.start()
        policy = directory / f"{HOSTILE}.toml"
        policy.write_text(POLICY)
        agent.run("policy", "apply", policy)
        hosts = directory / "hosts.json"
        hosts.write_text(json.dumps(document(400)))
        agent.run("import", hosts)
        agent.connect(*[f"192.0.2.{n}" for n in range(2, 6)] * 8)
        # Then 16 segments are tried.
        agent.connect(*["192.0.2.6"] * 160, size=50_000)
        agent.web = Web(agent)
        try:
            yield agent
        finally:
            agent.web.close()
    finally:
        agent.close()


@pytest.fixture(scope="module")
def browser():
    needed(BROWSER)
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=arguments)
        yield started
        started.close()


class Watched:
    """A page, and what it asked for and complained about."""

    def __init__(self, browser, place, **options):
        options = {"viewport": {"width": 1100, "height": 900}, "locale": "en-GB"} | options
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.origin = place.web.origin
        self.faults, self.requests, self.bytes = [], [], 0
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on(
            "console",
            lambda message: (
                message.type in ("error", "warning") and self.faults.append(message.text)
            ),
        )
        self.page.on("request", lambda request: self.requests.append(request.url))
        network = self.context.new_cdp_session(self.page)
        network.send("Network.enable")
        network.on("Network.dataReceived", self.received)
        self.page.goto(place.web.url)
        self.live()

    def received(self, event):
        self.bytes += event["dataLength"]

    def live(self):
        self.page.wait_for_selector("#connection[data-state=live]")

    def go(self, fragment, selector):
        self.page.evaluate("fragment => { location.hash = fragment; }", fragment)
        self.page.wait_for_selector(selector)

    def fits(self):
        """No part is wider than the window."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )

    def close(self):
        outside = [url for url in self.requests if not url.startswith(self.origin + "/")]
        self.context.close()
        assert (self.faults, outside) == ([], [])


@pytest.fixture
def opened(browser, place):
    watched = []

    def opens(**options):
        watched.append(Watched(browser, place, **options))
        return watched[-1]

    yield opens
    for one in watched:
        one.close()


VIEWS = {
    "overview": "#arms svg",
    "hosts": "#hosts tbody tr",
    "host/192.0.2.2": "#host-story tbody tr",
    "networks": "#networks tbody tr, #windows tbody tr",
    "kernel": "#cost:not(:empty)",
}


def test_the_page_follows_the_agent(opened, place):
    watched = opened()
    page = watched.page
    assert page.url == f"{place.web.origin}/", "the token stays in the address"
    page.wait_for_selector(VIEWS["overview"])
    assert 0 < watched.bytes <= 300_000, watched.bytes
    before = place.get("/v1/status")["counters"]["established"]
    page.wait_for_selector("#tiles div:nth-child(4) strong")
    place.connect(*["192.0.2.2"] * 3)
    more = page.wait_for_function(
        "before => Number(document.querySelector('#tiles div:nth-child(4) strong').textContent.replace(/\\D/g, '')) >= before + 6",
        arg=before,
    )
    assert more
    page.wait_for_selector("#latest tbody tr >> text=192.0.2.2")
    text = page.inner_text("#problems")
    assert "No problems." in text
    # The chart says in words what it shows.
    label = page.get_attribute("#arms svg", "aria-label")
    assert re.search(r"Shares of \d+ decisions from .*: (cubic|reno|bbr) \d+\.\d %", label), label
    page.click("#arms summary")
    assert page.locator("#arms tbody tr").count() >= 1


def test_hosts_and_the_story_of_one(opened, place):
    watched = opened()
    page = watched.page
    watched.go("hosts", VIEWS["hosts"])
    assert page.locator("#hosts tbody tr").count() == 50
    page.select_option("#sort", "recent")
    page.wait_for_selector("#hosts tbody tr:first-child >> text=192.0.2")
    page.fill("#address", "not an address")
    page.press("#address", "Enter")
    assert "Expected an address" in page.inner_text("#search-fault")
    page.fill("#address", "203.0.113.9")
    page.press("#address", "Enter")
    page.wait_for_selector("#host tbody tr")
    assert page.url.endswith("#host/203.0.113.9")
    assert page.inner_text("#host-title") == "203.0.113.9"
    assert "costs least" in page.inner_text("#host .summary")
    assert page.title().startswith("203.0.113.9")
    # A link leads there as well, and an unknown host is said to be one.
    watched.go("host/192.0.2.2", VIEWS["host/192.0.2.2"])
    assert "MB in" in page.inner_text("#host-story")
    # Its networks may know something.
    watched.go("host/192.0.2.99", "#host tbody tr")
    assert "No record of its own" in page.inner_text("#host .summary")
    assert page.inner_text("#host-story") == ""
    watched.go("host/127.0.0.9", "#host [role=alert]")
    assert "nothing is known of 127.0.0.9" in page.inner_text("#host")
    # The browser reports the 404 itself.
    watched.faults = [text for text in watched.faults if "404" not in text]


def cells(page, row):
    """The cells of a row by their headings; "" has the row's own."""
    found = page.locator(row).first
    names = found.locator("td").evaluate_all("cells => cells.map(cell => cell.dataset.label)")
    texts = found.locator("td").all_inner_texts()
    return {"": found.locator("th").inner_text()} | dict(zip(names, texts, strict=True))


def network(answer, level):
    return next(one for one in answer["networks"] if one["level"] == level)


def test_networks_and_their_initial_windows(opened, place):
    watched = opened()
    page = watched.page
    known = wait_for("windows", lambda: network(place.get("/v1/windows"), "prefix"))
    assert (known["name"], known["largest"]) == ("192.0.2.0/24", 16)
    watched.go("networks", "#windows tbody tr")
    page.wait_for_selector("#networks tbody tr")
    assert page.title().startswith("Networks")
    assert page.inner_text("#windows").startswith("Chosen among 10, 16 segments.")
    row = cells(page, "#windows tbody tr")
    assert (row[""], row["Level"], row["At most now"]) == ("192.0.2.0/24", "prefix", "16")
    assert row["A connection gets"] == f"{known['best']} segments"
    shares = dict(part.split(": ") for part in row["Shares"].split(", "))
    # A network that knows too little to decide leaves all connections the kernel's window.
    likely = {str(one["segments"]) for one in known["windows"] if one["next_probability"] > 0}
    assert set(shares) == (likely if known["decides"] else {"10"}), (row, known)
    assert sum(float(share.removesuffix(" %")) for share in shares.values()) == pytest.approx(
        100, abs=0.2
    )
    # How many of the connections tell something depends on the machine's speed.
    now = network(place.get("/v1/windows"), "prefix")
    assert 0 < known["scored"] <= int(row["Measured"]) <= now["scored"]
    assert {one["level"] for one in place.get("/v1/windows")["networks"]} == {
        "prefix", "service", "namespace",
    }  # fmt: skip
    assert page.locator("#windows tbody tr").count() == len(place.get("/v1/windows")["networks"])
    row = cells(page, "#networks tbody tr")
    known = network(place.get("/v1/networks"), "prefix")
    assert (row[""], row["Hosts"]) == ("192.0.2.0/24", str(known["hosts"]))
    assert row["A new host gets"] == (known["best"] or "the system's default")

    # A host that had nothing but small transfers has no record, and its network has.
    watched.go("host/192.0.2.6", "#host tbody tr")
    assert "No record of its own" in page.inner_text("#host .summary")
    windows = page.locator("#host table", has_text="Initial windows of its networks")
    text = windows.inner_text()
    assert "192.0.2.0/24" in text and "all" in text, text
    # One that is known has both, and its connections their windows.
    watched.go("host/192.0.2.2", VIEWS["host/192.0.2.2"])
    windows.wait_for()
    assert page.locator("#host table", has_text="What each arm costs").count() == 1
    told = page.inner_text("#host-story")
    assert "initial window 10 segments (probability " in told, told
    watched.faults = [text for text in watched.faults if "404" not in text]


def test_windows_of_many_networks_and_of_none(opened, place):
    watched = opened()
    page = watched.page
    asked = []
    windows = [
        {
            "segments": segments, "difference_bits": bits, "error_bits": 0.1, "evidence": 20,
            "own_evidence": 12, "retransmitted": resent, "scored": 900, "count": 800,
            "next_probability": share,
        }
        for segments, bits, resent, share in [(10, 0, 0.001, 0.25), (16, -1, 0.02, 0.75), (24, 0.5, 0, 0)]
    ]  # fmt: skip
    one = {
        "name": HOSTILE, "level": "prefix", "netns": 1, "container": HOSTILE, "decides": True,
        "decided": 1234, "scored": 2000, "idle_s": 5, "largest": 16, "best": 16, "windows": windows,
    }  # fmt: skip
    few = one | {"decides": False, "best": 10, "windows": [windows[0] | {"next_probability": 1}]}
    given = {"segments": [10, 16, 24], "networks": [one, few] + [few] * 48}

    def fulfil(route):
        asked.append(route.request.url)
        route.fulfill(json=given)

    page.route("**/v1/windows?*", fulfil)
    watched.go("networks", "#windows tbody tr")
    assert asked[0].endswith("/v1/windows?limit=50")
    seen = HOSTILE.replace("\u202e", "\\u{202e}")
    row = cells(page, "#windows tbody tr")
    # Half of the time is one bit less; 0.1 bits are 7.2 %.
    assert row == {
        "": f"{seen} ({seen})", "Level": "prefix", "A connection gets": "16 segments",
        "Shares": "10: 25.0 %, 16: 75.0 %", "Time": "-50.0 % ± 7.2 %",
        "Retransmitted": "2.0 % / 0.1 %", "At most now": "16", "Decided": "1,234",
        "Measured": "2,000", "Last": "5 s ago",
    }  # fmt: skip
    row = cells(page, "#windows tbody tr:nth-child(2)")
    assert (row["A connection gets"], row["Time"]) == ("10, too little is known", "–")
    assert "The 50 with most measurements." in page.inner_text("#windows")
    assert page.locator("main img").count() == 0
    for segments, said in [
        ([10, 16], "Nothing is known yet"),
        ([], "They are not learned: [initial_window] enabled"),
    ]:
        given |= {"segments": segments, "networks": []}
        watched.go("overview", VIEWS["overview"])
        watched.go("networks", "#windows .note")
        page.locator("#windows").get_by_text(said).wait_for()
    page.unroute("**/v1/windows?*")
    page.route("**/v1/networks?*", lambda route: route.abort())
    watched.go("overview", VIEWS["overview"])
    watched.go("networks", "#networks [role=alert]")
    assert page.inner_text("#networks") == "The networks cannot be had: no answer."
    page.wait_for_selector("#windows tbody tr")
    watched.faults = [text for text in watched.faults if "ERR_FAILED" not in text]


def test_only_so_many_networks_are_told_of(place):
    for resource in ("networks", "windows"):
        every = place.get(f"/v1/{resource}")["networks"]
        assert len(every) >= 3
        most = max(one["scored"] for one in every)
        found = place.get(f"/v1/{resource}?limit=1")["networks"]
        assert [one["scored"] for one in found] == [most]
        kept = place.get(f"/v1/{resource}?limit={len(every)}")["networks"]
        assert [one["name"] for one in kept] == [one["name"] for one in every]
        assert place.front.ask(f"/v1/{resource}?limit=x")[0] == 400


def test_the_fleet_is_asked_for_once_its_view_is_opened(opened, place):
    from axe_playwright_python.sync_playwright import Axe

    watched = opened()
    page = watched.page
    page.wait_for_selector(VIEWS["overview"])
    assert not page.is_visible("#fleet-link"), "this agent is in no fleet"
    assert not [url for url in watched.requests if "fleet.js" in url]
    asked = []
    traffic = {"messages": 12, "bytes": 3400}
    mine = {
        "agent": "web1", "labels": ["all"], "server": "tls://nats.example.com", "connected_s": 5,
        "connections": 1, "faults": {"form": 2}, "shares": True, "takes": True, "told": 3, "agents": 24,
        "networks": 7, "in_force": 7, "left_out": 0, "other_rule": 0, "unheard": 0, "sent": traffic,
        "received": traffic, "last_fault": {"kind": "form", "text": HOSTILE, "age_s": 9},
    }  # fmt: skip
    one = {
        "agent": "web1", "age_s": 60, "silent": False, "version": "0.1.0", "labels": ["all"],
        "policies": [{"label": "all", "number": 4, "stage": "in-force", "reason": ""}],
        "problems": [], "unreadable": None,
    }  # fmt: skip
    bad = one | {"agent": "web2", "version": None, "policies": [], "unreadable": HOSTILE}
    late = one | {"agent": "web3", "age_s": 7200, "silent": True}
    many = [one | {"agent": f"x{number}"} for number in range(300)]
    agents = {"read_s": 0, "versions": {"0.1.0": 302}, "silent": 1, "with_problems": 1,
              "agents": [one, late, bad, *many]}  # fmt: skip
    row = {
        "measure": "time", "size": None, "unit": "percent", "control": 440, "treated": 4400,
        "effect": -18.2, "low": -24.1, "high": -12.3, "verdict": "better", "known_in_s": None,
    }  # fmt: skip
    spread = {"measure": "time", "known": 6, "better": 5, "worse": 1, "worse_share": 1 / 6}
    learner = {"rule": None, "summary": "9 agents: found.", "agents": 9, "rows": [row],
               "spread": [spread], "hinges_on": ["web1"]}  # fmt: skip
    gain = {
        "summary": "9 agents: found.", "read_s": 0, "without": 2, "refused": 1, "all": learner,
        "left_out": [{"agent": "web2", "why": HOSTILE}], "silent": [{"agent": "web3", "age_s": 7200}],
        "rules": [learner | {"rule": HOSTILE, "spread": [], "hinges_on": []}],
    }  # fmt: skip

    def fulfil(route):
        path = route.request.url.removeprefix(watched.origin)
        asked.append(path)
        route.fulfill(
            json={"/v1/fleet": mine, "/v1/fleet/agents": agents, "/v1/fleet/gain": gain}[path]
        )

    page.route("**/v1/fleet*", fulfil)
    page.route("**/v1/fleet/*", fulfil)
    page.reload()
    watched.live()
    page.wait_for_selector("#fleet-link:visible")
    assert asked == ["/v1/fleet"], "more than its place before the view is opened"
    page.click("#fleet-link")
    page.wait_for_selector("#fleet-gain tbody tr")
    assert asked[1:] == ["/v1/fleet", "/v1/fleet/agents", "/v1/fleet/gain"]
    assert page.title().startswith("Fleet")
    seen = HOSTILE.replace("\u202e", "\\u{202e}")
    text = page.inner_text("#fleet-place")
    assert "what 24 agents tell of 7 networks; 7 records in force" in text
    assert f"form: {seen}" in text
    assert page.inner_text("#fleet-agents").startswith(
        "303 agents, 1 version, 1 silent, 1 with problems."
    )
    assert page.locator("#fleet-agents tbody tr").count() == 200
    # Those that somebody should look at come first.
    first = cells(page, "#fleet-agents tbody tr")
    assert (first[""], first["Version"], first["Problems"]) == (
        "web2",
        "–",
        f"Not readable: {seen}",
    )
    second = cells(page, "#fleet-agents tbody tr:nth-child(2)")
    assert second[""] == "web3" and second["Status"].endswith("silent")
    third = cells(page, "#fleet-agents tbody tr:nth-child(3)")
    assert third["Policies"] == "all 4 in-force"
    row = cells(page, "#fleet-gain tbody tr")
    assert (row[""], row["Effect"], row["Interval"]) == ("Time", "-18 %", "-24 % to -12 %")
    text = page.inner_text("#fleet-gain")
    for said in [
        "9 agents: found.", f"Rule {seen}. 9 agents", "5 better, 1 worse of 6", "would be another: web1.",
        "2 agents without a control group", "an hour: web3.", f"web2 is left out: {seen}.",
    ]:  # fmt: skip
        assert said in text, said
    assert page.locator("main img").count() == 0
    assert watched.fits()
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert not [one for one in found if one["impact"] in ("serious", "critical")], found
    # Opened again within a minute it asks for nothing.
    watched.go("overview", VIEWS["overview"])
    watched.go("fleet", "#fleet-gain tbody tr")
    page.evaluate("new Promise((done) => setTimeout(done))")
    assert len(asked) == 4, asked


def test_the_gain_by_source(opened, place):
    from axe_playwright_python.sync_playwright import Axe

    watched = opened()
    page = watched.page

    def group(by, name, effect):
        row = {
            "measure": "time", "size": None, "unit": "percent", "control": 440, "treated": 4400,
            "effect": effect, "low": effect - 6, "high": effect + 6, "verdict": "better", "known_in_s": None,
        }  # fmt: skip
        return {"by": by, "name": name, "rows": [row]}

    found = json.loads(place.front.ask("/v1/gain?by=source")[2])
    assert found["groups"][0]["by"] == "all", found
    sources = [("own", -11.0), ("fleet", -24.0), (HOSTILE, -9.0)]
    groups = [group("all", "", -18.0), *(group("source", *source) for source in sources)]
    groups.append({"by": "source", "name": "none", "rows": []})
    page.route("**/v1/gain*", lambda route: route.fulfill(json=found | {"groups": groups}))
    page.reload()
    watched.live()
    page.wait_for_selector("#gain tbody tr")
    assert page.locator("#gain caption").all_inner_texts() == [
        "Treated connections less the control group; control in hosts × hours",
        "The same of hosts whose hour began with what this agent measured",
        "The same of hosts whose hour began with what other agents told",
        HOSTILE.replace("\u202e", "\\u{202e}"),
    ]
    effects = page.locator("#gain tbody td:nth-child(2)").all_inner_texts()
    assert effects == ["-18 %", "-11 %", "-24 %", "-9.00 %"]
    assert page.locator("main img").count() == 0
    assert watched.fits()
    violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert not [one for one in violations if one["impact"] in ("serious", "critical")], violations


def test_hostile_names_are_text(opened, place):
    watched = opened()
    page = watched.page
    seen = HOSTILE.replace("\u202e", "\\u{202e}")
    watched.go("kernel", "#policy tbody tr")
    assert f"{seen}.toml" in page.inner_text("#policy .facts")
    # Names that no command of ours would take.
    kernel = place.get("/v1/kernel")
    kernel["policy"]["rules"][0]["name"] = HOSTILE
    kernel["programs"][0]["name"] = HOSTILE
    kernel["cc"][0]["name"] = HOSTILE
    page.route("**/v1/kernel", lambda route: route.fulfill(json=kernel))
    watched.go("overview", VIEWS["overview"])
    watched.go("kernel", "#policy tbody th")
    page.locator("#policy tbody th").get_by_text(seen, exact=True).wait_for()
    assert seen in page.inner_text("#cc")
    assert seen in page.inner_text("#cost")
    watched.go("host/" + "%3Cimg%20src%3Dx%3E%E2%80%AE", "#host [role=alert]")
    assert page.inner_text("#host-title") == "<img src=x>\\u{202e}"
    assert page.locator("main img").count() == 0
    # The name of something that every object has is that of no view.
    watched.go("constructor", "[data-view=overview]:not([hidden])")
    watched.faults = [text for text in watched.faults if "400" not in text]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(opened, scheme):
    from axe_playwright_python.sync_playwright import Axe

    watched = opened(color_scheme=scheme, reduced_motion="reduce")
    # Only the colours differ.
    options = {"resultTypes": ["violations"]}
    if scheme == "dark":
        options["runOnly"] = ["color-contrast"]
    for fragment, selector in VIEWS.items():
        watched.go(fragment, selector)
        found = Axe().run(watched.page, options=options).response["violations"]
        bad = [
            (one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert not bad, (fragment, bad)


def test_the_page_fits_a_phone_and_paper(opened, tmp_path):
    watched = opened(viewport={"width": 320, "height": 640})
    for fragment, selector in VIEWS.items():
        watched.go(fragment, selector)
        assert watched.fits(), fragment
    watched.go("overview", VIEWS["overview"])
    paper = watched.page.pdf(format="A4")
    assert paper.startswith(b"%PDF-") and len(paper) > 10_000


def test_the_page_works_by_keyboard(opened):
    watched = opened()
    page = watched.page
    page.wait_for_selector(VIEWS["overview"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    box = page.locator("#skip").bounding_box()
    assert box["x"] >= 0 and box["y"] >= 0, "seen once it has the focus"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.focus("nav a[href='#hosts']")
    style = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(style) == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector(VIEWS["hosts"])
    assert page.evaluate("document.activeElement.id") == "main"
    reached = []
    for _ in range(4):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached == ["address", "BUTTON", "sort", "A"]
    page.keyboard.press("Enter")
    page.wait_for_selector("#host tbody tr")


def test_the_page_says_when_the_agent_is_gone_and_goes_on(opened, place):
    watched = opened()
    page = watched.page
    place.stop()
    page.wait_for_selector("#connection[data-state=lost]")
    wait_for("the reason", lambda: "no agent answers" in page.inner_text("#connection"))
    assert "Unknown: the agent does not answer" in page.inner_text("#problems")
    # A page that is opened meanwhile says so, too.
    second = watched.context.new_page()
    second.goto(place.web.origin)
    second.wait_for_selector("#connection[data-state=lost]")
    place.start()
    watched.live()
    second.wait_for_selector("#connection[data-state=live]")
    # The browser reports each failed request itself.
    watched.faults = [text for text in watched.faults if "Failed to load resource" not in text]


@pytest.mark.parametrize("which", ["web", "front"])
def test_who_is_let_in(place, which):
    """`thalweg web`, and the port of the agent itself."""
    web = getattr(place, which)
    assert web.ask()[0] == 200
    for headers, status in [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer " + "0" * 32}, 401),
        ({"Authorization": "", "Cookie": f"thalweg-{web.port}=00"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Host": f"evil.example:{web.port}"}, 403),
        ({"Host": f"localhost:{web.port}"}, 200),
        ({"Host": "[::1]:9999"}, 200),
    ]:
        assert web.ask(**headers)[0] == status, headers
    assert web.ask("/?token=" + "0" * 32, Authorization="")[0] == 401
    for method in ("POST", "DELETE", "PUT"):
        assert web.ask("/v1/hosts", method)[0] == 405
    assert place.get("/v1/status")["hosts"] >= 400, "nothing was removed"
    status, headers, _ = web.ask(f"/?token={quote(web.token, safe='')}", Authorization="")
    assert (status, headers["Location"]) == (303, "./")
    cookie = headers["Set-Cookie"]
    assert cookie.startswith(f"thalweg-{web.port}=")
    assert cookie.endswith("; HttpOnly; SameSite=Strict")
    assert web.ask(Authorization="", Cookie=cookie.split(";")[0])[0] == 200
    status, headers, _ = web.ask("/")
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_a_problem_is_shown_with_its_remedy(opened, place):
    watched = opened()
    page = watched.page
    good = place.config.read_text()
    try:
        place.config.write_text(good + "<b>[half")
        assert subprocess.run(place.command("--socket", place.socket, "reload")).returncode == 1
        page.wait_for_selector("#problems .problem")
        problem = page.inner_text("#problems")
        assert "Problem: the new configuration was not taken" in problem
        assert "What to do: Correct the file and ask again: thalweg config check" in problem
        assert page.locator("#problems b").count() == 0
    finally:
        place.config.write_text(good)
    place.run("reload")
    page.wait_for_selector("#problems .good")


def test_streams_that_nobody_reads_hold_up_nobody(place):
    readers = [socket.create_connection(("127.0.0.1", place.web.port)) for _ in range(8)]
    direct = OverSocket(place.socket)
    try:
        for reader in readers:
            reader.sendall(
                f"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {place.web.token}\r\n\r\n".encode()
            )
        direct.request("GET", "/v1/stream")
        stream = direct.getresponse()
        place.connect(*["192.0.2.3"] * 20)
        # Another reader gets its messages, and the agent answers as before.
        names = set()
        while len(names) < 2:
            line = stream.readline().decode()
            if line.startswith("event: "):
                names.add(line.removeprefix("event: ").strip())
        assert names == {"status", "events"}
        assert place.get("/v1/status")["resident_bytes"] < 64 << 20
        assert place.web.ask()[0] == 200
    finally:
        direct.close()
        for reader in readers:
            reader.close()


def test_web_ends_cleanly_and_needs_a_free_port_of_loopback(place):
    for how in (signal.SIGINT, signal.SIGTERM):
        web = Web(place)
        # A stream does not hold it up.
        connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)
        connection.request("GET", "/v1/stream", headers={"Authorization": f"Bearer {web.token}"})
        assert connection.getresponse().status == 200
        assert end(web.process, how) == 0
        connection.close()
    taken = subprocess.run(
        place.command("web", "--listen", f"127.0.0.1:{place.web.port}"),
        capture_output=True,
        text=True,
    )
    assert taken.returncode == 1
    assert taken.stderr.startswith(
        f"thalweg: 127.0.0.1:{place.web.port} is in use; name another port"
    )
    assert taken.stderr.count("\n") == 1
    for address in ("0.0.0.0:0", "192.0.2.1:80", "[::]:0"):
        refused = subprocess.run(
            place.command("web", "--listen", address), capture_output=True, text=True
        )
        assert refused.returncode == 2
        assert "nothing is encrypted" in refused.stderr


@pytest.mark.generator
def test_pictures_for_the_guide(opened, place):
    """Writes docs/guide/page-*.png, after minutes of traffic: the chart would have one bar."""
    chance = random.Random(1)
    for _ in range(150):
        number = chance.randrange(1, 12)
        place.connect(*[f"192.0.2.{chance.randrange(2, 9)}" for _ in range(number)])
        time.sleep(1)
    wide = {"viewport": {"width": 900, "height": 1010}}
    phone = {"viewport": {"width": 360, "height": 700}, "color_scheme": "dark"}
    for name, fragment, options in [
        ("overview", "overview", wide),
        ("host", "host/192.0.2.2", phone),
    ]:
        watched = opened(**options)
        watched.go(fragment, VIEWS[fragment])
        watched.page.screenshot(path=GUIDE / f"page-{name}.png")
