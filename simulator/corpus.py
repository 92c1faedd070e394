"""The text that ``build_tokenizer`` trains on. Data only: English, other scripts, code, JSON and logs, so that the
merges it yields look like a real vocabulary's (common words are one token, rare ones several).
"""

# ruff: noqa: RUF001 - other scripts and their punctuation are the point
from __future__ import annotations

CORPUS = (
    """
You are a helpful assistant. Answer the question in a few words. If you do not know the answer, say so.
You are a careful engineer who reads the code before changing it and explains every decision to the reader.
The quick brown fox jumps over the lazy dog. The lazy dog does not mind the quick brown fox at all.
Tell me a long story about the gateway that routes requests to inference servers with prefix caching.
Once upon a time there was a small router at the edge of a large network, and it remembered every prompt it had seen.
What is the weather like today? What should I wear? Which train should I take to get there before eight o'clock?
Write a short poem about the sea, then translate it, then explain the difference between the two versions.
Summarise the following document in three sentences. Keep the names, the numbers and the dates as they are.
The engine holds the key and value blocks of every prompt it has computed, until it needs the memory for another one.
A request that begins with the same tokens can use the same blocks, so the first token comes back much sooner.
When two servers hold the same prefix, the one with less work to do should answer; when none does, the least loaded one.
The conversation continued for many turns. The user asked again, and the assistant answered again, and so it went on.
Please compare these two proposals and tell me which of them is cheaper, which is faster and which is easier to keep.
There were seven people in the room, and each of them had read the report, but only one had understood the last page.
In the morning the market opens early; fish, bread, fruit and flowers are sold before most of the town is awake.
She said that the bridge had been closed since Monday, and that nobody could say when it would be opened again.
The following table lists the results of the experiment by model, by batch size and by the length of the context.
Because memory is limited, the least recently used blocks are given up first, and their names are announced to others.
If the connection is lost before anything has been sent, another endpoint can be tried without any harm being done.
Measure first, then change one thing, then measure again; a difference below the noise is not a difference.
Every function does one thing and its name says which. Every error names the part that failed and how to repair it.
To be or not to be is a question; the answer depends on the context, as most answers about people usually do.
The library is open from nine to five, except on public holidays, when it is closed for the whole of the day.
Our customers would like to know how much the service costs, how quickly it answers and what happens when it fails.
It is not the strongest of the species that survives, nor the most intelligent, but the one most responsive to change.
The teacher wrote the equation on the board, and the students copied it into their notebooks without asking why.
""",
    """
def encode(text: str, add_special_tokens: bool = True) -> list[int]:
    \"\"\"Return the token ids of the text.\"\"\"
    return [token.id for token in tokenizer.encode(text) if token is not None]

class Request:
    def __init__(self, model, messages, max_tokens=256, temperature=0.0, stream=False):
        self.model = model
        self.messages = messages
        self.max_tokens = max_tokens

async def main() -> None:
    async with client.post(url, json={"model": "sim", "prompt": prompt, "stream": True}) as response:
        async for line in response.content:
            print(line.decode("utf-8"), end="")

for (int i = 0; i < count; i++) { total += values[i]; if (total > limit) { return -1; } }
import os, sys, json, time; from collections import defaultdict
SELECT name, price FROM products WHERE price < 100 ORDER BY price DESC LIMIT 10;
fn main() { let mut sum = 0; for x in 1..=10 { sum += x; } println!("{}", sum); }
git commit -m "fix the test" && git push origin main
""",
    """
{"type": "function", "function": {"name": "get_weather", "description": "Get the current weather of a city",
"parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
"required": ["city"]}}}
{"role": "user", "content": "What is the weather in Paris?"}
{"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "name": "get_weather", "arguments": {}}]}
{"role": "tool", "tool_call_id": "call_1", "content": "{\\"temperature\\": 21, \\"unit\\": \\"celsius\\"}"}
2026-11-20 23:35:10 INFO 127.0.0.1:8000 - "POST /v1/chat/completions HTTP/1.1" 200 OK
https://example.com/documents/index.html?page=12&size=100#section-3
0 1 2 3 4 5 6 7 8 9 10 16 32 64 100 128 256 512 1000 1024 2048 4096 2024 2025 2026 3.14159 0.5 1.25 99.9%
""",
    """
Guten Morgen, wie geht es Ihnen? Die Anfrage geht an den Server, der den gleichen Anfang schon berechnet hat.
Bonjour, comment allez-vous ? La réponse dépend du contexte, et le contexte est souvent très long.
Buenos días, ¿cómo está usted? El servidor guarda los bloques hasta que necesita la memoria.
你好，世界。今天天气很好，我们去公园散步吧。请用一句话回答这个问题。
こんにちは、世界。今日はとても良い天気です。質問に一言で答えてください。
Привет, мир. Сегодня хорошая погода, и мы идём в парк. Ответь на вопрос одним словом.
안녕하세요. 오늘은 날씨가 좋습니다. 질문에 답해 주세요.
مرحبا بالعالم. كيف حالك اليوم؟
😀 🎉 🚀 ✅ → ← ≤ ≥ × ÷ € £ “quoted” ‘text’ – — …
""",
)
"""Passages, in the order in which they are trained on."""
