// Texts that the views start with.
export default {
  "questions": [
    {
      "name": "Who comes from Germany?",
      "query": "Who comes from Germany?",
      "expected": "Anna Berg",
      "gold": 4,
      "documents": [
        "Otto Berg comes from Norway.",
        "Anna Lindt comes from Peru.",
        "Clara Moss comes from Canada.",
        "Felix Rowe comes from Poland.",
        "Anna Berg comes from Germany.",
        "Anna Stone comes from Ghana.",
        "Otto Stone comes from Albania.",
        "Ida Berg comes from Syria.",
        "Mira Rowe comes from Kenya.",
        "Felix Moss comes from Chile."
      ]
    },
    {
      "name": "Who likes cocoa?",
      "query": "Who likes cocoa?",
      "expected": "Claudia Burgess",
      "gold": 5,
      "documents": [
        "Claudia Richards likes tea.",
        "Tom Duncan likes milk.",
        "Tom Reed likes lemonade.",
        "Margaret Reed likes cider.",
        "Anna Burgess likes coffee.",
        "Claudia Burgess likes cocoa.",
        "Margaret Doyle likes wine.",
        "Tom Mason likes water.",
        "Tom Howard likes juice.",
        "Margaret Moss likes beer."
      ]
    },
    {
      "name": "A question that no document answers",
      "query": "What is the pet of Jessa Irving?",
      "expected": "",
      "gold": 0,
      "documents": [
        "Corin Blackwood owns the golden parrot.",
        "Danis Crowley owns the amber falcon.",
        "Belan Ashford owns the quiet otter."
      ]
    }
  ],
  "documents": [
    "Corin Blackwood owns the golden parrot.",
    "Danis Crowley owns the amber falcon.",
    "Elra Dunmore owns the silver badger.",
    "Belan Ashford owns the quiet otter.",
    "Faris Elwood owns the quiet heron.",
    "Gavin Fenwick owns the golden otter."
  ],
  "captions": {
    "two-shapes.jpg": [
      "a blue square left of a yellow circle",
      "a yellow square left of a blue circle",
      "a blue circle above a yellow square"
    ],
    "pair-1.jpg": [
      "a pink heart above a lime cross",
      "a lime heart above a pink cross",
      "a pink heart below a lime cross"
    ],
    "pair-2.jpg": [
      "a red square above a navy ring",
      "a navy square above a red ring",
      "a red square below a navy ring"
    ],
    "pair-3.jpg": [
      "a purple triangle above a navy square",
      "a navy triangle above a purple square",
      "two purple triangles"
    ]
  },
  "inputs": [
    {
      "premise": "A child in a green shirt is sleeping.",
      "hypothesis": "The child is wearing something white."
    },
    {
      "premise": "Two dogs are running on the beach.",
      "hypothesis": "Animals are outside."
    },
    {
      "premise": "A woman is reading a book.",
      "hypothesis": "She is sitting in a train."
    },
    {
      "body": "Dora split 63 spoons evenly into 9 bags. Gina has 19 bags.",
      "question": "How many spoons are in each bag of Dora?"
    },
    {
      "body": "Ali has 12 pens. He buys 5 more and gives 3 to Mia.",
      "question": "How many pens does Ali have now?"
    }
  ]
};
