"""Question-and-answer examples in the chat format, made from small tables and the training text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools import tiny_facts as facts


@dataclass(frozen=True)
class Turn:
    """One question with its answer and, where the answer takes a step, the thought before it."""

    question: str
    answer: str
    thought: str = ""


def render(turns: Sequence[Turn], thinking: bool, system: str = "") -> str:
    """The text that the chat template gives for this conversation (a test compares them)."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    for number, turn in enumerate(turns):
        text += f"<|im_start|>user\n{turn.question}<|im_end|>\n<|im_start|>assistant\n"
        if number == len(turns) - 1:
            thought = turn.thought if thinking else ""
            text += f"<think>\n{thought}\n</think>\n\n"
        text += f"{turn.answer}<|im_end|>\n"
    return text


class ChatExamples:
    """Draws conversations from a seed; `blocks` and `definitions` feed the stories and meanings."""

    def __init__(
        self, seed: int, blocks: Sequence[tuple[str, str]], definitions: dict[str, str]
    ) -> None:
        self.random = random.Random(seed)
        counts: dict[str, int] = {}
        self.passages: dict[str, list[str]] = {}
        for source, text in blocks:
            for word in re.findall(r"\b[a-z]{3,9}\b", text):
                counts[word] = counts.get(word, 0) + 1
            if source not in facts.STORY_SOURCES:
                continue
            for paragraph in text.split("\n\n"):
                if 150 <= len(paragraph) <= 700:
                    for theme in set(facts.THEMES) & set(paragraph.lower().split()):
                        self.passages.setdefault(theme, []).append(paragraph)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self.words = ranked[:3000] or ["red", "house", "tree", "river"]
        self.meanings = [(w, definitions[w]) for w in self.words if w in definitions]
        self.meanings = self.meanings[:1500]
        self.kinds: list[tuple[Callable[[], Turn], int]] = [
            (self.addition, 8), (self.subtraction, 6), (self.product, 4), (self.larger, 4),
            (self.capital, 8), (self.opposite, 6), (self.colour, 4), (self.sound, 2),
            (self.young, 2), (self.plural, 3), (self.past, 3), (self.simple, 10), (self.day, 3),
            (self.count, 4), (self.letters, 3), (self.spelling, 5), (self.repeat, 6),
            (self.first_or_last, 3), (self.meaning, 4), (self.definition, 6), (self.story, 8),
        ]  # fmt: skip

    def conversation(self) -> str:
        """One rendered conversation: one to three turns, or a tool call."""
        if self.random.random() < 0.03:
            return self.tool_call()
        makers, weights = zip(*self.kinds, strict=True)
        turns = [
            make()
            for make in self.random.choices(makers, weights, k=self._pick((1, 1, 1, 1, 2, 3)))
        ]
        system = self._pick(("You are a helpful assistant.", "Answer briefly.", *[""] * 8))
        return render(turns, self.random.random() < 0.5, system)

    def _pick(self, options: Sequence):
        return options[self.random.randrange(len(options))]

    def _say(self, forms: str, **values: object) -> str:
        return str(self._pick(forms.split(" / "))).format(**values)

    def addition(self) -> Turn:
        top = self._pick((10, 10, 20, 50))
        a, b = self.random.randint(0, top), self.random.randint(0, top)
        ask = self._say(
            "What is {a} + {b}? / What is {a} plus {b}? / {a}+{b}=? / Add {a} and {b}."
            " / How much is {a} and {b}? / {a} + {b}", a=a, b=b,
        )  # fmt: skip
        answer = self._say("{c} / {a} + {b} = {c} / The answer is {c}.", a=a, b=b, c=a + b)
        return Turn(ask, answer, f"The question asks for {a} plus {b}. {a} + {b} = {a + b}.")

    def subtraction(self) -> Turn:
        b, c = self.random.randint(0, 20), self.random.randint(0, 20)
        a = b + c
        ask = self._say(
            "What is {a} - {b}? / What is {a} minus {b}? / {a}-{b}=? / Take {b} from {a}."
            " / I have {a} apples and give away {b}. How many are left?", a=a, b=b,
        )  # fmt: skip
        answer = self._say("{c} / {a} - {b} = {c} / The answer is {c}.", a=a, b=b, c=c)
        return Turn(ask, answer, f"The question asks for {a} minus {b}. {a} - {b} = {c}.")

    def product(self) -> Turn:
        a, b = self.random.randint(0, 10), self.random.randint(0, 10)
        ask = self._say("What is {a} times {b}? / {a} x {b} = ? / Multiply {a} by {b}.", a=a, b=b)
        answer = self._say("{c} / {a} times {b} is {c}.", a=a, b=b, c=a * b)
        return Turn(ask, answer, f"The question asks for {a} times {b}. {a} x {b} = {a * b}.")

    def larger(self) -> Turn:
        a, b = self.random.sample(range(100), 2)
        ask = self._say(
            "Which is larger, {a} or {b}? / Which number is bigger: {a} or {b}?", a=a, b=b
        )
        c = max(a, b)
        return Turn(ask, f"{c} is larger.", f"I compare {a} and {b}. {c} is larger.")

    def capital(self) -> Turn:
        land, city = self._pick(facts.CAPITALS)
        if self.random.random() < 0.15:
            ask = self._say("{city} is the capital of which country?"
                            " / Of what country is {city} the capital?", city=city)  # fmt: skip
            return Turn(ask, f"{city} is the capital of {land}.", f"{city} belongs to {land}.")
        ask = self._say(
            "What is the capital of {land}? / Name the capital of {land}."
            " / Which city is the capital of {land}? / Tell me the capital of {land}.", land=land,
        )  # fmt: skip
        answer = self._say("The capital of {land} is {city}. / {city}.", land=land, city=city)
        return Turn(ask, answer, f"The question is about {land}. Its capital is {city}.")

    def opposite(self) -> Turn:
        a, b = self._pick(facts.OPPOSITES)
        ask = self._say('What is the opposite of "{a}"? / What is the opposite of {a}?'
                        " / Give me the opposite of {a}.", a=a)  # fmt: skip
        return Turn(ask, f"The opposite of {a} is {b}.", f"The word is {a}. Its opposite is {b}.")

    def colour(self) -> Turn:
        thing, colour = self._pick(facts.COLOURS)
        ask = self._say(
            "What colour is {t}? / What color is {t}? / Tell me the colour of {t}.", t=thing
        )
        return Turn(
            ask, f"{thing[0].upper()}{thing[1:]} is {colour}.", f"I think of {thing}: {colour}."
        )

    def sound(self) -> Turn:
        animal, sound = self._pick(facts.SOUNDS)
        ask = self._say("What does a {a} do? / What sound does a {a} make?", a=animal)
        return Turn(ask, f"A {animal} {sound}.", f"The animal is a {animal}. It {sound}.")

    def young(self) -> Turn:
        animal, young = self._pick(facts.YOUNG)
        ask = self._say("What is a young {a} called? / What do you call a baby {a}?", a=animal)
        return Turn(ask, f"A young {animal} is called a {young}.", f"A baby {animal} is a {young}.")

    def plural(self) -> Turn:
        one, many = self._pick(facts.PLURALS)
        ask = self._say('What is the plural of "{w}"? / One {w}, two what?', w=one)
        return Turn(ask, f"The plural of {one} is {many}.", f"One {one}, two {many}.")

    def past(self) -> Turn:
        now, then = self._pick(facts.PASTS)
        ask = self._say('What is the past tense of "{w}"? / Put "{w}" in the past tense.', w=now)
        return Turn(
            ask, f"The past tense of {now} is {then}.", f"Today I {now}, yesterday I {then}."
        )

    def simple(self) -> Turn:
        ask, answer = self._pick(facts.WHO)
        return Turn(ask, answer, f"This is a simple question. {answer}")

    def day(self) -> Turn:
        names, kind = self._pick(((facts.DAYS, "day"), (facts.MONTHS, "month")))
        at = self.random.randrange(len(names))
        step, word = self._pick(((1, "after"), (-1, "before")))
        other = names[(at + step) % len(names)]
        ask = self._say(
            "What {k} comes {w} {n}? / Which {k} is {w} {n}?", k=kind, w=word, n=names[at]
        )
        answer = f"{other} comes {word} {names[at]}."
        return Turn(ask, answer, f"I go through the {kind}s. {answer}")

    def count(self) -> Turn:
        start = self.random.randint(1, 12)
        row = ", ".join(str(n) for n in range(start, start + self.random.randint(3, 9)))
        last = row.split()[-1]
        ask = self._say(
            "Count from {a} to {b}. / Please count from {a} up to {b}.", a=start, b=last
        )
        return Turn(ask, f"{row}.", f"I start at {start} and stop at {last}.")

    def letters(self) -> Turn:
        word = self._pick(self.words[:800])
        ask = self._say(
            'How many letters are in "{w}"? / How many letters has the word {w}?', w=word
        )
        return Turn(ask, f"The word {word} has {len(word)} letters.",
                    f"{'-'.join(word)}: I count {len(word)}.")  # fmt: skip

    def spelling(self) -> Turn:
        word = self._pick(self.words[:1500])
        ask = self._say('How do you spell "{w}"? / Spell {w}. / Spell the word "{w}".', w=word)
        return Turn(ask, "-".join(word), f"I say the letters of {word} one by one.")

    def repeat(self) -> Turn:
        words = " ".join(self.random.choices(self.words[:1500], k=self.random.randint(1, 5)))
        ask = self._say('Say "{w}". / Repeat: {w} / Please repeat after me: {w}'
                        ' / Write the words "{w}".', w=words)  # fmt: skip
        return Turn(ask, words, f"I repeat the words: {words}")

    def first_or_last(self) -> Turn:
        words = self.random.choices(self.words[:800], k=self.random.randint(2, 4))
        which, at = self._pick((("first", 0), ("last", -1)))
        ask = f"What is the {which} word of: {' '.join(words)}?"
        return Turn(
            ask, words[at], f"The words are {', '.join(words)}. The {which} is {words[at]}."
        )

    def meaning(self) -> Turn:
        word, meaning = self._pick(facts.MEANINGS)
        article = "an" if word[0] in "aeiou" else "a"
        ask = self._say("What is {a} {w}? / What does the word {w} mean?"
                        " / Explain what {a} {w} is.",
                        a=article, w=word)  # fmt: skip
        start = "The" if word in {"sun", "moon", "sea"} else article.capitalize()
        if word in {"water", "bread", "rain", "snow", "fire", "winter", "summer"}:
            return Turn(
                f"What is {word}?", f"{word.capitalize()} is {meaning}.", f"I explain {word}."
            )
        return Turn(ask, f"{start} {word} is {meaning}.", f"I explain the word {word}.")

    def definition(self) -> Turn:
        if not self.meanings:
            return self.meaning()
        word, gloss = self._pick(self.meanings)
        ask = self._say('What does "{w}" mean? / Define "{w}". / Give a definition of {w}.', w=word)
        return Turn(ask, f"{word}: {gloss}.", f"I give the meaning of {word}.")

    def story(self) -> Turn:
        if not self.passages:
            return self.simple()
        theme = self._pick(sorted(self.passages))
        passage = self._pick(self.passages[theme])
        ask = self._say(
            "Tell me something about a {t}. / Write a few lines with the word {t}."
            " / Tell me a story about the {t}. / Write about the {t}. / Tell me a story.", t=theme,
        )  # fmt: skip
        return Turn(ask, passage, f"I write a few lines about {theme}.")

    def tool_call(self) -> str:
        """A system turn with one tool, and a question that calls it with one copied argument."""
        name, key, ask = self._pick(
            (
                ("get_weather", "city", "What is the weather in {v}?"),
                ("get_time", "city", "What time is it in {v}?"),
                ("search", "query", "Search for {v}."),
            )
        )
        value = self._pick([city for _, city in facts.CAPITALS])
        parameters = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
        tool = {"type": "function", "function": {"name": name, "parameters": parameters}}
        system = f"Tools:\n<tools>\n{json.dumps(tool, ensure_ascii=False)}\n</tools>\n"
        system += "To call one, write its name and arguments as JSON between"
        system += " <tool_call> and </tool_call>."
        call = json.dumps({"name": name, "arguments": {key: value}})
        answer = f"<tool_call>\n{call}\n</tool_call>"
        turn = Turn(ask.format(v=value), answer, f"I call {name} for {value}.")
        return render([turn], self.random.random() < 0.5, system)
