"""Shows that the checks of the libraries' documents can fail: on a small symbol graph, and on small documents."""
import json

import interface
import pytest
import samples


def symbol(name, text, documented=True, file="Sources/StreamBroker/Broker.swift", line=4):
    found = {
        "identifier": {"precise": f"s:{name}"}, "pathComponents": name.split("."), "kind": {"identifier": "swift.struct"},
        "declarationFragments": [{"spelling": text}], "location": {"uri": f"file:///home/me/{file}", "position": {"line": line}}}
    if documented:
        found["docComment"] = {"lines": [{"text": "What it is for."}]}
    return found


@pytest.fixture
def graphs(tmp_path, monkeypatch):
    def write(*symbols):
        relations = [{"kind": "conformsTo", "source": "s:Broker", "target": "s:s8SendableP", "targetFallback": "Swift.Sendable"},
                     {"kind": "conformsTo", "source": "s:Broker", "target": "s:s8CopyableP", "targetFallback": "Swift.Copyable"}]
        (tmp_path / "StreamBroker.symbols.json").write_text(json.dumps({"symbols": symbols, "relationships": relations}))
        return tmp_path

    monkeypatch.setattr(interface, "FILES", tmp_path / "interface")
    return write


def test_a_line_is_a_symbol_with_what_it_conforms_to(graphs):
    assert interface.interface(graphs(symbol("Broker", "struct Broker"))) == {"StreamBroker": ["Broker: struct Broker : Sendable"]}


def test_a_change_of_the_interface_is_printed(graphs, capsys):
    interface.write(graphs(symbol("Broker", "struct Broker"), symbol("Broker.a", "var a: Int")))
    assert interface.compare(graphs(symbol("Broker", "struct Broker"), symbol("Broker.a", "var a: Int"))) == 0
    assert interface.compare(graphs(symbol("Broker", "struct Broker"), symbol("Broker.a", "var a: UInt"))) == 1
    printed = capsys.readouterr().out
    assert "StreamBroker: -Broker.a: var a: Int\n" in printed and "StreamBroker: +Broker.a: var a: UInt\n" in printed
    assert "interface.py --write" in printed


def test_a_module_that_is_gone_is_a_change(graphs):
    interface.write(graphs(symbol("Broker", "struct Broker"), symbol("Lane", "actor Lane", file="Sources/ByteStreams/Lane.swift")))
    assert interface.compare(graphs(symbol("Broker", "struct Broker"))) == 1


def test_a_symbol_without_documentation_is_found_unless_the_compiler_made_it(graphs, capsys):
    made = symbol("Broker.==", "static func ==", documented=False)
    del made["location"]
    assert interface.undocumented(graphs(symbol("Broker", "struct Broker"), made)) == 0
    assert interface.undocumented(graphs(symbol("Broker", "struct Broker", documented=False), made)) == 1
    assert "Sources/StreamBroker/Broker.swift:5: no documentation for Broker\n" in capsys.readouterr().out


def test_samples_are_found_in_documents_and_comments(tmp_path, monkeypatch):
    (tmp_path / "Docs/Library.docc").mkdir(parents=True)
    (tmp_path / "Sources/ByteStreams").mkdir(parents=True)
    (tmp_path / "README.md").write_text("```yaml\nno: sample\n```\n\n```swift\nprint(url)\n```\n")
    (tmp_path / "Docs/Library.docc/Page.md").write_text("# Page\n\n```swift\nimport StreamBroker\n\n@main\nstruct A {}\n```\n")
    (tmp_path / "Sources/ByteStreams/Lane.swift").write_text("/// A lane.\n/// ```swift\n/// let a = 1\n/// ```\npublic actor Lane {}\n/// ```\n/// drawing\n/// ```\n")
    monkeypatch.setattr(samples, "ROOT", tmp_path)
    found = [(str(file), line, text) for file, line, text in samples.samples()]
    assert found == [("README.md", 6, "print(url)\n"), ("Docs/Library.docc/Page.md", 4, "import StreamBroker\n\n@main\nstruct A {}\n"),
                     ("Sources/ByteStreams/Lane.swift", 3, "let a = 1\n")]


def test_a_whole_file_is_compiled_as_it_is_and_a_part_in_a_function():
    assert "func" not in samples.source(0, "a.md", 1, "import StreamBroker\n\n@main\nstruct A {}\n")
    assert "@main" not in samples.source(0, "a.md", 1, "import StreamBroker\n\n@main\nstruct A {}\n")
    assert samples.source(7, "a.md", 9, "print(url)\n").split("\n")[3:6] == [
        "func sample7(_ stream: StreamHandle, _ broker: Broker, _ url: String) async throws {", '#sourceLocation(file: "a.md", line: 9)', "print(url)"]
