import StreamBroker
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("Metrics")
struct MetricsTests {
  private static func all(_ format: MetricsFormat, _ routes: [RouteSample]) -> String {
    var gateway = GatewayFigures()
    gateway.handshakeFailures = [.loginFailed: 2]
    gateway.refused = ["http-request": 3]
    gateway.lanes = [.init(name: "lane-0", nanoseconds: 1_500_000), .init(name: "lane-1", nanoseconds: nil)]
    gateway.version = "1.2"
    gateway.isReady = true
    gateway.hasFailedReload = true
    gateway.certificateFaults = 4
    gateway.handshakes = .init(unfinished: 5, most: 6, refused: 7)
    gateway.adminConnections = 8
    gateway.process.memory = 9
    gateway.process.addressSpace = 10
    gateway.process.descriptors = 11
    gateway.process.mostDescriptors = 12
    gateway.process.processorSeconds = 1.5
    gateway.process.startTime = 2.5
    return Metrics.ofGateway.map { $0.family.head(format) + $0.samples(gateway, $0.family) }.joined()
      + Metrics.ofRoute.map { one in
        one.family.head(format) + routes.map { one.samples($0, one.family) }.joined()
      }.joined() + MetricFamily.end(format)
  }

  private static var route: RouteSample {
    var figures = RouteFigures()
    figures.totals.ended = [.kicked: 1, .tooSlow: 2]
    figures.totals.up = 5
    figures.totals.down = 6
    figures.totals.dropped = 7
    figures.totals.perAddress = 8
    figures.totals.lineChanges = 9
    figures.totals.lineRefusals = 10
    figures.clients = 11
    figures.waiting = 12
    figures.queuedUp = 13
    figures.queuedDown = 14
    figures.linkCounts = LinkCounts(opened: 15, lost: 16, failed: 17)
    figures.line = LineCounts(breaks: 1, framing: 2, parity: 3, overruns: 4, bufferOverruns: 5)
    figures.links = ["open": 1]
    figures.capture = Snapshot.Capture(file: "/x", error: "write: ENOSPC", written: 6, dropped: 7)
    let listening = Snapshot.Listener(url: "tcp://:1", state: .listening("tcp://*:1"), nanoseconds: 0)
    return RouteSample(name: "gps", maxClients: 8, listeners: [listening], figures: figures)
  }

  @Test(
    "follow Prometheus' rules for names, and have help, type and all samples of a family together",
    arguments: [MetricsFormat.prometheus, .openMetrics])
  func rules(format: MetricsFormat) throws {
    var (families, family, kind): (Set<String>, String, String) = ([], "", "")
    var samples: Set<Substring> = []
    for line in Self.all(format, [Self.route]).split(separator: "\n") where line != "# EOF" {
      let words = line.split(separator: " ", maxSplits: 3).map(String.init)
      if words[0] == "#" {
        if words[2] != family { #expect(families.insert(words[2]).inserted, "\(words[2]) is not together") }
        family = words[2]
        if words[1] == "TYPE" { kind = words[3] }
        if words[1] == "HELP" { #expect(words.count == 4 && words[3].hasSuffix(".") || words[3] == "clients.max") }
        if words[1] == "UNIT" { #expect(family.hasSuffix("_\(words[3])")) }
        #expect(family.wholeMatch(of: /(baudway|process)(_[a-z]+)+/) != nil)
        continue
      }
      let parts = try #require(line.wholeMatch(of: /([a-z_]+)(\{[a-z]+="[^"\\]*"(,[a-z]+="[^"\\]*")*\})? ([0-9.e-]+)/))
      let suffix = ["counter": "_total", "info": "_info"][kind] ?? ""
      #expect(String(parts.1) == (format == .openMetrics ? family + suffix : family), "\(line)")
      #expect(kind != "counter" || parts.1.hasSuffix("_total"))
      #expect(samples.insert(line.prefix(line.count - parts.4.count)).inserted, "\(line) is there twice")
    }
    #expect(families.count == Metrics.ofGateway.count + Metrics.ofRoute.count)
  }

  @Test("have the figures under their labels")
  func values() {
    let lines = Set(Self.all(.prometheus, [Self.route]).split(separator: "\n").map(String.init))
    for line in [
      #"baudway_build_info{version="1.2"} 1"#, "baudway_ready 1", "baudway_last_reload_successful 0",
      "baudway_certificate_faults 4", "baudway_handshakes_unfinished 5", "baudway_handshakes_limit 6",
      "baudway_handshakes_refused_total 7", "baudway_admin_connections 8", "process_resident_memory_bytes 9",
      "process_virtual_memory_bytes 10", "process_open_fds 11", "process_max_fds 12", "process_cpu_seconds_total 1.5",
      "process_start_time_seconds 2.5", #"baudway_clients{route="gps"} 11"#, #"baudway_clients_limit{route="gps"} 8"#,
      #"baudway_clients_waiting{route="gps"} 12"#,
      #"baudway_forwarded_bytes_total{route="gps",direction="down"} 6"#,
      #"baudway_dropped_bytes_total{route="gps"} 7"#, #"baudway_queued_bytes{route="gps",direction="up"} 13"#,
      #"baudway_queued_bytes{route="gps",direction="down"} 14"#,
      #"baudway_per_address_refusals_total{route="gps"} 8"#,
      #"baudway_line_changes_total{route="gps",result="done"} 9"#,
      #"baudway_line_changes_total{route="gps",result="refused"} 10"#, #"baudway_link_opens_total{route="gps"} 15"#,
      #"baudway_link_losses_total{route="gps"} 16"#, #"baudway_link_open_failures_total{route="gps"} 17"#,
      #"baudway_handshake_failures_total{reason="login-failed"} 2"#,
      #"baudway_refusals_total{reason="http-request"} 3"#,
      #"baudway_lane_up{lane="lane-0"} 1"#, #"baudway_lane_up{lane="lane-1"} 0"#,
      #"baudway_lane_answer_seconds{lane="lane-0"} 0.0015"#, #"baudway_route_up{route="gps"} 1"#,
      #"baudway_listeners{route="gps",state="listening"} 1"#, #"baudway_listeners{route="gps",state="waiting"} 0"#,
      #"baudway_forwarded_bytes_total{route="gps",direction="up"} 5"#,
      #"baudway_sessions_ended_total{route="gps",ending="too-slow"} 2"#, #"baudway_links{route="gps",state="open"} 1"#,
      #"baudway_links{route="gps",state="waiting"} 0"#, #"baudway_line_errors_total{route="gps",error="framing"} 2"#,
      #"baudway_line_errors_total{route="gps",error="parity"} 3"#,
      #"baudway_line_errors_total{route="gps",error="overrun"} 4"#,
      #"baudway_capture_up{route="gps"} 0"#, #"baudway_capture_written_bytes_total{route="gps"} 6"#,
      #"baudway_capture_dropped_bytes_total{route="gps"} 7"#,
      #"baudway_line_errors_total{route="gps",error="buffer-overrun"} 5"#, #"baudway_line_breaks_total{route="gps"} 1"#,
    ] { #expect(lines.contains(line), "\(line)") }
    #expect(!lines.contains { $0.hasPrefix("baudway_lane_answer_seconds{lane=\"lane-1\"") })
    #expect(!lines.contains { $0.contains("ending=\"idle\"") })
  }

  @Test("escape what would end a label's value or a line")
  func escapes() {
    let family = MetricFamily("x_bytes", .gauge, "a\\b\n\"c\".")
    #expect(family.sample(["route": "a\"b\\c\nd"], MetricValue(1)) == "x_bytes{route=\"a\\\"b\\\\c\\nd\"} 1\n")
    #expect(family.head(.prometheus) == "# HELP x_bytes a\\\\b\\n\"c\".\n# TYPE x_bytes gauge\n")
    #expect(
      family.head(.openMetrics)
        == "# TYPE x_bytes gauge\n# UNIT x_bytes bytes\n# HELP x_bytes a\\\\b\\n\\\"c\\\".\n")
  }

  @Test(
    "are OpenMetrics for a client that prefers it",
    arguments: [
      ([], MetricsFormat.prometheus), (["*/*"], .prometheus), (["text/plain"], .prometheus),
      (["application/openmetrics-text; version=1.0.0"], .openMetrics),
      (
        ["application/openmetrics-text;version=1.0.0;q=0.5", "text/plain;version=0.0.4;q=0.3", "*/*;q=0.2"],
        .openMetrics
      ),
      (["application/openmetrics-text;q=0.2", "text/plain;q=0.3"], .prometheus),
      (["application/openmetrics-text;q=0"], .prometheus), (["application/openmetrics-text;q=x"], .prometheus),
    ])
  func negotiation(accept: [String], format: MetricsFormat) { #expect(MetricsFormat(accept: accept) == format) }
}
