"""The openai package of Python against a server: python3 openai_client.py URL"""
import sys
import threading

import openai

URL = sys.argv[1]
STORY = [{"role": "user", "content": "Tell me a short story about a fox."}]
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


def chat(client):
    answer = client.chat.completions.create(model="tiny", messages=CAPITAL, temperature=0)
    assert "Paris" in answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model_extra["timings"]["draft"]["kind"] == "assistant"


def chat_stream(client):
    ask = dict(model="tiny", messages=STORY, temperature=0.8, seed=4, max_completion_tokens=50)
    whole = client.chat.completions.create(**ask)
    stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    text, usage, reasons = "", None, []
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text == whole.choices[0].message.content
    assert usage == whole.usage
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])


def several_streamed(client):
    """Several outputs with all that a stream can carry beside text."""
    ask = dict(model="tiny", messages=STORY, n=3, temperature=0.9, seed=7, max_completion_tokens=30, logprobs=True, top_logprobs=2,
               stop=["zzz", "\n\n"], prediction={"type": "content", "content": "Once upon a time"}, user="me", store=True,
               metadata={"a": "b"}, reasoning_effort="low")
    whole = client.chat.completions.create(**ask)
    text, entries, reasons = {}, {}, {}
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            text[choice.index] = text.get(choice.index, "") + (choice.delta.content or "")
            entries.setdefault(choice.index, []).extend(choice.logprobs.content if choice.logprobs else [])
            reasons[choice.index] = choice.finish_reason
    for choice in whole.choices:
        got = (text[choice.index], entries[choice.index], reasons[choice.index])
        assert got == (choice.message.content, choice.logprobs.content, choice.finish_reason)


def raw_response(client):
    raw = client.chat.completions.with_raw_response.create(model="tiny", messages=CAPITAL, extra_headers={"x-request-id": "mine"})
    assert raw.request_id == raw.headers["x-request-id"] == "mine" and raw.parse().choices
    with client.chat.completions.with_streaming_response.create(model="tiny", messages=CAPITAL, stream=True) as response:
        assert "data: [DONE]" in list(response.iter_lines())


def helper_stream(client):
    """The helper that puts chunks together by itself."""
    with client.chat.completions.stream(model="tiny", messages=CAPITAL, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert "Paris" in final.choices[0].message.content


def logprobs(client):
    answer = client.chat.completions.create(model="tiny", messages=CAPITAL, temperature=0, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 3 and entry.top_logprobs[0].logprob == entry.logprob for entry in content)
    score = client.completions.create(model="tiny", prompt="The capital of France", max_tokens=0, echo=True, logprobs=1)
    table = score.choices[0].logprobs
    assert score.choices[0].text == "The capital of France"
    assert table.token_logprobs[0] is None and all(value <= 0 for value in table.token_logprobs[1:])
    assert len(table.tokens) == len(table.text_offset) == len(table.top_logprobs) == len(table.token_logprobs)


def completions(client):
    answer = client.completions.create(model="tiny", prompt=["Once upon a time", "The sea"], n=2, max_tokens=20, temperature=1, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = {}
    for chunk in client.completions.create(model="tiny", prompt=["Once upon a time", "The sea"], n=2, max_tokens=20, temperature=1,
                                           seed=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert [texts[i] for i in range(4)] == [choice.text for choice in answer.choices]


def extensions(client):
    ask = dict(model="tiny", messages=STORY, temperature=0.9, seed=3, max_tokens=40)
    more = {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "draft": {"enabled": False}}
    plain = client.chat.completions.create(**ask, extra_body=more)
    more["draft"] = {"enabled": True, "max_tokens": 3}
    drafted = client.chat.completions.create(**ask, extra_body=more)
    assert plain.choices == drafted.choices
    assert drafted.model_extra["timings"]["draft"]["accepted"] > 0


def models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "paceline"


def expect(error, code, **ask):
    try:
        client = openai.OpenAI(base_url=URL, api_key=ask.pop("key", "ci-key"), max_retries=0)
        client.chat.completions.create(**{"model": "tiny", "messages": CAPITAL, "max_tokens": 2, **ask})
    except error as e:
        assert e.code == code, e
        return e
    raise AssertionError("no %s for %r" % (error.__name__, ask))


def errors(_):
    assert expect(openai.BadRequestError, None, temperature=-1).param == "temperature"
    assert expect(openai.BadRequestError, None, tools=[{"type": "function", "function": {"name": "f"}}]).param == "tools"
    assert expect(openai.BadRequestError, None, response_format={"type": "json_object"}).param == "response_format"
    expect(openai.BadRequestError, "context_length_exceeded", messages=[{"role": "user", "content": "word " * 1000}])
    expect(openai.NotFoundError, "model_not_found", model="gpt-4")
    expect(openai.AuthenticationError, "invalid_api_key", key="wrong")


def cancel(client):
    """Streams that are closed early give their slots back."""
    for _ in range(20):
        stream = client.chat.completions.create(model="tiny", messages=STORY, max_tokens=400, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    chat(client)


def concurrent(client):
    asks = [dict(model="tiny", messages=STORY, temperature=0.7, seed=i, max_tokens=40) for i in range(12)]
    alone = [client.chat.completions.create(**ask).choices for ask in asks]
    got = [None] * len(asks)

    def one(i):
        got[i] = client.chat.completions.create(**asks[i]).choices
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == alone


def main():
    client = openai.OpenAI(base_url=URL, api_key="ci-key", max_retries=0, timeout=120)
    for check in (chat, chat_stream, several_streamed, raw_response, helper_stream, logprobs, completions, extensions, models, errors, cancel, concurrent):
        check(client)
        print("  python", openai.__version__, check.__name__)


main()
