// Where prompts go must be said as the server will say it, or the user agrees to something else.
import assert from "node:assert/strict";
import { test } from "node:test";
import { consentText, hostOf, proposedBy } from "../src/modelHost";

test("the host of an address is what is agreed to", () => {
  assert.equal(hostOf("http://localhost:8000/v1"), "localhost:8000");
  assert.equal(hostOf(" https://models.example/v1/ "), "models.example");
  assert.equal(hostOf("https://trusted.example@evil.example/v1"), "evil.example");
  assert.equal(hostOf("https://evil.example#@trusted.example"), "evil.example");
  assert.equal(hostOf(""), "api.openai.com");
  assert.equal(hostOf("file:///etc/passwd"), "");
});

test("the first use says who gets what", () => {
  const text = consentText("m-1", "models.example");
  for (const word of ["m-1", "models.example", "lines of it", "not its text", "nothing is applied by itself"]) assert.ok(text.includes(word), word);
});

test("a proposed change is titled as one", () => {
  assert.equal(proposedBy(undefined), "");
  assert.equal(proposedBy("m-1"), ", proposed by m-1");
});
