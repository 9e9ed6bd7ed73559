// The openai package of npm against a server: node openai_client.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "ci-key", maxRetries: 0, timeout: 120_000 });
const story = [{ role: "user", content: "Tell me a short story about a fox." }];
const capital = [{ role: "user", content: "What is the capital of France?" }];

const checks = {
  async chat() {
    const answer = await client.chat.completions.create({ model: "tiny", messages: capital, temperature: 0 });
    assert.match(answer.choices[0].message.content, /Paris/);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },

  async stream() {
    const ask = { model: "tiny", messages: story, temperature: 0.8, seed: 4, max_tokens: 50 };
    const whole = await client.chat.completions.create(ask);
    const stream = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
    let text = "";
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(usage, whole.usage);
  },

  async logprobs() {
    const ask = { model: "tiny", messages: capital, temperature: 0, logprobs: true, top_logprobs: 2 };
    const answer = await client.chat.completions.create(ask);
    assert.equal(answer.choices[0].logprobs.content.length, answer.usage.completion_tokens);
    assert.equal(answer.choices[0].logprobs.content[0].top_logprobs.length, 2);
  },

  async completions() {
    const ask = { model: "tiny", prompt: "Once upon a time", temperature: 0, max_tokens: 30 };
    const whole = await client.completions.create(ask);
    let text = "";
    for await (const chunk of await client.completions.create({ ...ask, stream: true })) {
      text += chunk.choices[0]?.text ?? "";
    }
    assert.equal(text, whole.choices[0].text);
  },

  async errors() {
    const refused = (more) => client.chat.completions.create({ model: "tiny", messages: capital, max_tokens: 2, ...more });
    await assert.rejects(refused({ temperature: -1 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature");
    await assert.rejects(refused({ model: "gpt-4" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
    await assert.rejects(refused({ response_format: { type: "json_object" } }), (e) => e.param === "response_format");
    const other = new OpenAI({ baseURL: process.argv[2], apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.models.list(), OpenAI.AuthenticationError);
  },

  async cancel() {
    for (let i = 0; i < 20; i++) {
      const stream = await client.chat.completions.create({ model: "tiny", messages: story, max_tokens: 400, stream: true, ignore_eos: true });
      for await (const _ of stream) break;
      stream.controller.abort();
    }
    await checks.chat();
  },

  async models() {
    const models = [];
    for await (const model of client.models.list()) models.push(model.id);
    assert.deepEqual(models, ["tiny"]);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log("  node", process.version, name);
}
