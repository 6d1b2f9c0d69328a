import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist/**", "node_modules/**", "**/*.mjs"] },
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: { parserOptions: { project: ["./tsconfig.json", "./extension/src/webviews/tsconfig.json", "./tests/editor/tsconfig.json"], tsconfigRootDir: import.meta.dirname } },
    rules: {
      eqeqeq: "error",
      "no-console": "error",
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  {
    // node:test reports through the promise that test() returns and also to the runner: awaiting it is optional there.
    files: ["extension/test/**"],
    rules: { "@typescript-eslint/no-floating-promises": "off" },
  },
);
