"""From measured values to the table: medians, ratios within each round, bars met or not. Used by bench.py."""

import statistics

from cases import Bar


class Results:
    """Values by case, metric, subject and round; what could not be measured, with its reason."""

    def __init__(self):
        self.values = {}
        self.reasons = {}

    def add(self, case, subject, round_number, values):
        for metric, value in values.items():
            if value is not None:
                self.values.setdefault((case.name, metric, subject.name), {})[round_number] = value

    def add_reason(self, case, subject, word, text):
        self.reasons[(case.name, subject.name)] = (word, text)

    def rounds_of(self, case, metric, name):
        return self.values.get((case.name, metric.name, name), {})

    def has(self, name):
        """Whether there is any result of this subject."""
        measured = any(subject == name for _, _, subject in self.values)
        return measured or any(key[1] == name and word == "BROKEN" for key, (word, _) in self.reasons.items())

    def median(self, case, metric, name):
        rounds = self.rounds_of(case, metric, name)
        return statistics.median(rounds.values()) if rounds else None

    def best_peer(self, case, metric, peers):
        """The peer with the best median: taking the best of each round would count noise as speed."""
        if not metric.better:
            return None
        known = [(self.median(case, metric, peer), peer) for peer in peers]
        known = [pair for pair in known if pair[0] is not None and not self.is_broken(case, pair[1])]
        if not known:
            return None
        return (max if metric.better == "more" else min)(known)[1]

    def is_broken(self, case, name):
        return self.reasons.get((case.name, name), ("",))[0] == "BROKEN"

    def ratios(self, case, metric, name, other):
        ours, theirs = self.rounds_of(case, metric, name), self.rounds_of(case, metric, other)
        return [ours[number] / theirs[number] for number in sorted(ours) if theirs.get(number)]

    def ratios_to_row(self, case, metric, name, row):
        """To the same subject's value in another case."""
        ours, theirs = self.rounds_of(case, metric, name), self.values.get((row, metric.name, name), {})
        return [ours[number] / theirs[number] for number in sorted(ours) if theirs.get(number)]


def number(value, digits=3):
    """A number with `digits` significant digits, without an exponent."""
    if value == 0:
        return "0"
    before = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, digits - max(before, 1))}f}"


def cell(results, case, metric, name):
    if (case.name, name) in results.reasons:
        word, _ = results.reasons[(case.name, name)]
        if word == "BROKEN" or not results.rounds_of(case, metric, name):
            return word
    rounds = list(results.rounds_of(case, metric, name).values())
    if not rounds:
        return ""
    middle = statistics.median(rounds)
    text = number(middle, metric.digits)
    if len(rounds) > 1 and middle:
        text += f" ±{(max(rounds) - min(rounds)) / 2 / abs(middle) * 100:.0f}%"
    return text


def judge(results, case, metric, bar, name, peers):
    """(the value or ratio as text, the bar as text, "yes" / "NO" / "?")."""
    if results.is_broken(case, name):
        return "", str(bar), "NO"
    if bar.than is None:
        value = results.median(case, metric, name)
        return "", str(bar), "?" if value is None else "yes" if bar.met(value) else "NO"
    other = results.best_peer(case, metric, peers) if bar.than == "best peer" else bar.than
    if other and other.startswith("own "):
        ratios = results.ratios_to_row(case, metric, name, other.removeprefix("own "))
    else:
        ratios = results.ratios(case, metric, name, other) if other else []
    if not ratios:
        return "", str(bar), "?"
    middle = statistics.median(ratios)
    text = f"{middle:.2f} × {other}"
    if len(ratios) > 1:
        text += f" ({min(ratios):.2f}–{max(ratios):.2f})"
    return text, str(bar), "yes" if bar.met(middle) else "NO"


def table(results, cases, subjects, baudway):
    """The Markdown table; the bars are judged for the subject named `baudway`."""
    names = [subject.name for subject in subjects if results.has(subject.name)]
    peers = [subject.name for subject in subjects if subject.peer]
    rows = [["case", "value", *names, "ratio", "bar", "met"]]
    for case in cases:
        for metric in case.metrics:
            cells = [cell(results, case, metric, name) for name in names]
            if not any(cells):
                continue
            judged = []
            if baudway in names:
                judged = [judge(results, case, metric, bar, baudway, peers) for bar in metric.bars]
                # Without a bar the ratio is still useful.
                if not judged and (best := results.best_peer(case, metric, peers)):
                    if ratios := results.ratios(case, metric, baudway, best):
                        judged = [(f"{statistics.median(ratios):.2f} × {best}", "", "")]
            columns = [", ".join(filter(None, column)) for column in zip(*judged)] or ["", "", ""]
            rows.append([case.title, metric.unit, *cells, *columns])
    return _aligned(rows)


def against(results, cases, baudway, other):
    """Two binaries side by side: every row's ratio, for a release against an older one. Exact values, such as
    instructions, may grow by 2 %; measured values may be worse by 3 %."""
    rows = [["case", "value", baudway, other, f"{baudway} / {other}", "bar", "met"]]
    for case in cases:
        for metric in case.metrics:
            ratios = results.ratios(case, metric, baudway, other)
            if not ratios:
                continue
            pair = [cell(results, case, metric, name) for name in (baudway, other)]
            middle = statistics.median(ratios)
            text = f"{middle:.3f}" + (f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else "")
            bar = _bar_against_older(metric)
            judged = [str(bar), "yes" if bar.met(middle) else "NO"] if bar else ["", ""]
            rows.append([case.title, metric.unit, *pair, text, *judged])
    return _aligned(rows)


def _bar_against_older(metric):
    if not metric.better:
        return None
    if metric.name == "instructions":
        return Bar("≤", 1.02, None)
    return Bar("≥", 0.97, None) if metric.better == "more" else Bar("≤", 1.03, None)


def notes(results, cases, subjects):
    """Why a cell has no number, once for each reason."""
    titles = {case.name: case.title for case in cases}
    grouped = {}
    for (case, subject), (word, text) in results.reasons.items():
        if case in titles and text:
            grouped.setdefault((subject, word, text), []).append(titles[case])
    shown = [subject for subject in subjects if results.has(subject.name)]
    lines = [f"- **{s.name}**: {s.note}" + (f" ({v})" if (v := s.version_line()) else "") for s in shown]
    lines += [f"- {subject} {word}: {'; '.join(where)}: {text}" for (subject, word, text), where in grouped.items()]
    return "\n".join(lines)


def verdict(results, cases, subjects, baudway):
    """How many bars are met, missed and unknown."""
    peers = [subject.name for subject in subjects if subject.peer]
    count = {"yes": 0, "NO": 0, "?": 0}
    for case in cases:
        for metric in case.metrics:
            for bar in metric.bars:
                count[judge(results, case, metric, bar, baudway, peers)[2]] += 1
    return f"{baudway}: {count['yes']} bars met, {count['NO']} not met, {count['?']} not judged."


def _aligned(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
