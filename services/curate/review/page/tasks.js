// What a review asks of each pair, by the name of its task, and the verdicts that answer it.

const MEASURED = "Please answer by yourself: nobody sees what others answer.";
const compares = (question) => ({
  question,
  intro: `Each pair has a caption and two texts that were made of it and need not be true. You choose the better one. ${MEASURED}`,
  verdicts: [
    { key: "1", name: "first", label: "First", meaning: "the first text is better" },
    { key: "2", name: "second", label: "Second", meaning: "the second text is better" },
    { key: "3", name: "tie", label: "Tie", meaning: "both are as good or as bad" },
  ],
});

export const TASKS = {
  validity: {
    question: "",
    intro:
      "Each pair has an image, a caption that is true of it, and a negative caption that should be false. You judge " +
      "whether it is. Please judge by yourself: others' verdicts are shown in the second round.",
    verdicts: [
      { key: "1", name: "valid", label: "Valid", meaning: "the negative caption is false of the image" },
      { key: "2", name: "false_negative", label: "False negative", meaning: "it is true of the image as well" },
      { key: "3", name: "unclear", label: "Unclear", meaning: "the image does not tell" },
    ],
  },
  choice: {
    question: "Which caption describes the image?",
    intro: `Each pair has an image and two captions, one of which describes it. You choose which. ${MEASURED}`,
    verdicts: [
      { key: "1", name: "first", label: "First", meaning: "the first caption describes the image" },
      { key: "2", name: "second", label: "Second", meaning: "the second caption describes it" },
    ],
  },
  commonsense: compares("Which text makes more sense, as something that one can see?"),
  grammar: compares("Which text is better English, grammatical and fluent?"),
};

export const labelOf = (task, verdict) => TASKS[task].verdicts.find(({ name }) => name === verdict).label;
