// What pages do besides being read: follow what is under way, bring charts along once the page is
// there, say what a policy means while it is written, and keep a button shut until the name is typed in. Everything works without it.
"use strict";

const POLL_MILLISECONDS = 1000;
const FAILURES_MAX = 5;
const TYPING_MILLISECONDS = 350;

function follow(place) {
  let failures = 0;
  async function look() {
    try {
      const answer = await fetch(place.dataset.progress, {
        headers: { Accept: "application/json" },
        cache: "no-store",
      });
      if (answer.status === 401) {
        location.reload();
        return;
      }
      const found = await answer.json();
      failures = 0;
      const stays = "progressStays" in place.dataset;
      if (found.ended && !stays) {
        location.reload();
        return;
      }
      if (found.html) {
        place.innerHTML = found.html;
      }
      if (found.ended) {
        return;
      }
    } catch {
      failures += 1;
    }
    if (failures < FAILURES_MAX) {
      setTimeout(look, POLL_MILLISECONDS);
    }
  }
  setTimeout(look, POLL_MILLISECONDS);
}

async function bring(place) {
  const answer = await fetch(place.dataset.fragment, { headers: { "X-Fragment": "1" } });
  if (answer.ok) {
    place.innerHTML = await answer.text();
  }
}

function preview(form) {
  // The text is tried once typing rests. Answers that came too late are dropped. The policy stands
  // in two editors: the answer has it as the other editor shows it.
  const place = document.getElementById(form.dataset.previewInto);
  const rules = document.getElementById("rules");
  let waiting = 0;
  let asked = 0;
  let edited = form.elements.edited.value;
  async function look(mine) {
    try {
      const fields = new URLSearchParams(new FormData(form));
      fields.set("edited", edited);
      const answer = await fetch(form.dataset.preview, {
        method: "POST",
        headers: { Accept: "application/json" },
        body: fields,
      });
      if (answer.ok && mine === asked) {
        const found = await answer.json();
        if (mine !== asked) {
          return;
        }
        place.innerHTML = found.html;
        if (found.policy !== undefined) {
          form.elements.policy.value = found.policy;
        }
        if (found.rules !== undefined) {
          rules.innerHTML = found.rules;
        }
      }
    } catch {
      // The next key asks again.
    }
  }
  const outdated = document.getElementById("outdated");
  form.addEventListener("input", (event) => {
    if (event.target.name === "edited") {
      return;
    }
    // Which editor was changed last, also if the other one is opened before the text is tried.
    edited = event.target.closest("[data-editor]")?.dataset.editor ?? edited;
    if (outdated) {
      outdated.hidden = false;
    }
    asked += 1;
    const mine = asked;
    clearTimeout(waiting);
    waiting = setTimeout(() => look(mine), TYPING_MILLISECONDS);
  });
}

function guard(field) {
  const form = field.form;
  const named = field.dataset.confirmsButton;
  const button = named
    ? document.getElementById(named)
    : form.querySelector("button.danger");
  function check() {
    button.disabled = field.value.trim() !== field.dataset.confirms;
  }
  field.addEventListener("input", check);
  check();
}

const shown = new URL(location);
if (shown.searchParams.has("notice") && !document.querySelector("[data-progress]")) {
  // A page that is loaded again, or kept as a bookmark, tells of no action.
  shown.searchParams.delete("notice");
  history.replaceState(null, "", shown);
}
document.querySelectorAll("[data-progress]").forEach(follow);
document.querySelectorAll("[data-fragment]").forEach(bring);
document.querySelectorAll("[data-preview]").forEach(preview);
document.querySelectorAll("[data-confirms]").forEach(guard);
document.addEventListener("keydown", (event) => {
  // A bubble that covers something can be put away without moving the focus.
  document.body.classList.toggle("no-bubbles", event.key === "Escape");
});
document.addEventListener("pointerover", (event) => {
  if (event.target.closest(".fate")) {
    document.body.classList.remove("no-bubbles");
  }
});
const section = document.querySelector(".sections [aria-current]");
if (section) {
  const list = section.closest("ul");
  list.scrollLeft = section.offsetLeft - list.offsetLeft - list.clientWidth / 3;
}
const problem = document.getElementById("problem");
if (problem) {
  problem.focus();
}
