// The review as a page of its own.
import { knownReviewer, rememberReviewer, takeToken } from "./memory.js";
import { mount } from "./review.js";

mount(document.getElementById("app"), {
  title: "Review of hard negatives",
  reviewer: knownReviewer(),
  onReviewer: rememberReviewer,
  token: takeToken(),
});
